"""Login providers: an OpenID Connect server whose routes and tokens have the shapes of five vendors.

They are Auth0 (access tokens of an API), Clerk (session tokens), Supabase Auth, Keycloak (access tokens of a realm) and
Firebase Authentication (ID tokens). The claims of Clerk, Supabase and Firebase were compared with the vendors' pages;
nothing was compared with a real account.
"""

from lakesync.testing.servers.oidc.provider import OidcProvider, User, providing
from lakesync.testing.servers.oidc.shapes import SHAPES, Shape

__all__ = ["SHAPES", "OidcProvider", "Shape", "User", "providing"]
