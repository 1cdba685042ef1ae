"""A fake login provider: an OpenID Connect server with the routes and tokens of one of five vendors.

The vendors are Auth0 (access tokens of an API), Clerk (session tokens), Supabase Auth, Keycloak (access tokens of a
realm) and Firebase Authentication (ID tokens). The claims of Clerk, Supabase and Firebase were compared with the
vendors' documentation; nothing was compared with a real account.
"""

from lakesync.testing.servers.oidc.provider import OidcProvider, User, serve_oidc
from lakesync.testing.servers.oidc.vendors import VENDORS, Vendor

__all__ = ["VENDORS", "OidcProvider", "User", "Vendor", "serve_oidc"]
