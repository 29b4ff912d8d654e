"""The web page: a server with a JSON API, and the page that uses it; `sightline app` starts it."""
