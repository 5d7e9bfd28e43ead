"""The dashboard: server-rendered pages, one module per page; templates and static files lie beside them."""
