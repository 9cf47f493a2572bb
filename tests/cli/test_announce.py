"""Events of commands, told to a server that is busy."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from fedcore.flows import announce


@pytest.mark.parametrize(("answers", "told"), [([503, 503, 204], True), ([500], False)])
def test_a_busy_server_is_asked_again(answers, told):
    """Prefect's says 503 while its SQLite database is locked; other errors are errors."""
    left = list(answers)

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(left.pop(0))
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        try:
            assert announce.post([{"event": "a"}], f"http://127.0.0.1:{httpd.server_port}/api") is told
        finally:
            httpd.shutdown()
    assert not left
