"""A proxy before an S3 server that errs on purpose: proxy.py MODE PORT URL

lose-first: the first PUT is done, and its answer is a 500, so the client tries again. ignore-conditions: the server
never hears of If-None-Match. away=FILE: each answer is a 503 while there is that file.
"""

import io
import os
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "content-length", "transfer-encoding"}
puts = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        dropped = HOP | ({"if-none-match"} if MODE == "ignore-conditions" else set())
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        # Else urllib would call the bytes of an object a form.
        headers.setdefault("content-type", "application/octet-stream")
        request = urllib.request.Request(URL + self.path, body or None, headers, method=self.command)
        try:
            if os.path.exists(MODE.removeprefix("away=")):
                raise urllib.error.HTTPError(self.path, 503, "away", {}, io.BytesIO())
            with urllib.request.urlopen(request) as response:
                status, told, data = response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            status, told, data = error.code, error.headers, error.read()
        if self.command == "PUT":
            puts.append(status)
            if MODE == "lose-first" and len(puts) == 1:
                status, data = 500, b""
        self.send_response(status)
        for name, value in told.items():
            if name.lower() not in HOP | {"date", "server"}:
                self.send_header(name, value)
        length = told.get("content-length", 0) if self.command == "HEAD" else len(data)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request


if __name__ == "__main__":
    MODE, URL = sys.argv[1], sys.argv[3]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
