// Show the document beside this page, whatever the page's query says.
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  queryConfigEnabled: false,
  validatorUrl: null,
});
