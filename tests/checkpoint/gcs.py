"""A fake of Google Cloud Storage, as far as object stores of checkpoints use its XML API: gcs.py PORT BUCKET

It keeps objects in memory, and the condition of a create (x-goog-if-generation-match: 0). It checks no signature. It is
written from the documentation, so it shows that our requests are right by that, and nothing of the real service.
"""

import hashlib
import sys
import threading
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree
from xml.sax.saxutils import escape

lock = threading.Lock()
objects, uploads = {}, {}
generation = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        self.send_header("content-length", headers.pop("length", len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, name = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            return self.error(404, "NoSuchBucket")
        with lock:
            if not name:
                return self.list(query)
            if self.command == "POST" and "uploads" in query:
                upload = f"upload-{len(uploads)}"
                uploads[upload] = {}
                text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                return self.answer(200, text.encode())
            if "uploadId" in query:
                return self.part(name, query, body)
            return self.object(name, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def part(self, name, query, body):
        parts = uploads.get(query["uploadId"])
        if parts is None:
            return self.error(404, "NoSuchUpload")
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            return self.answer(200, etag=tag(body))
        del uploads[query["uploadId"]]
        if self.command == "DELETE":
            return self.answer(204)
        listed = [int(it.findtext("PartNumber")) for it in ElementTree.fromstring(body).iter("Part")]
        small = [number for number in listed[:-1] if len(parts[number]) < 5 << 20]
        if listed != sorted(parts) or small:
            return self.error(400, "EntityTooSmall" if small else "InvalidPart")
        self.put(name, b"".join(parts[number] for number in listed))
        text = f"<CompleteMultipartUploadResult><ETag>{objects[name]['etag']}</ETag></CompleteMultipartUploadResult>"
        self.answer(200, text.encode(), x_goog_generation=objects[name]["generation"])

    def object(self, name, body):
        there = objects.get(name)
        if self.command == "PUT":
            if self.headers.get("x-goog-if-generation-match") == "0" and there:
                return self.error(412, "PreconditionFailed")
            self.put(name, body)
            there = objects[name]
            return self.answer(200, etag=there["etag"], x_goog_generation=there["generation"])
        if there is None:
            return self.error(404, "NoSuchKey")
        if self.command == "DELETE":
            del objects[name]
            return self.answer(204)
        bytes_, status = there["bytes"], 200
        facts = {"etag": there["etag"], "last_modified": formatdate(there["changed"], usegmt=True)}
        facts["x_goog_generation"] = there["generation"]
        wanted = self.headers.get("range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            first, last = int(first), min(int(last or len(bytes_)), len(bytes_) - 1)
            if first >= len(bytes_):
                return self.error(416, "InvalidRange")
            facts["content_range"] = f"bytes {first}-{last}/{len(bytes_)}"
            bytes_, status = bytes_[first : last + 1], 206
        self.answer(status, bytes_, length=len(bytes_), **facts)

    def put(self, name, body):
        global generation
        generation += 1
        objects[name] = {"bytes": body, "etag": tag(body), "generation": generation, "changed": 1_700_000_000}

    def list(self, query):
        """Two names a page, so that pages are followed."""
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        names = sorted(name for name in objects if name.startswith(prefix) and name > after)
        names = [name for name in names if name > query.get("continuation-token", "")]
        page = names[:2]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(names) > 2 else ""
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(objects[name]['bytes'])}</Size>"
            f"<LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>x</ETag></Contents>"
            for name in page
        )
        self.answer(200, f"<ListBucketResult>{contents}{more}</ListBucketResult>".encode())


def tag(body):
    return '"' + hashlib.md5(body).hexdigest() + '"'


if __name__ == "__main__":
    BUCKET = sys.argv[2]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
