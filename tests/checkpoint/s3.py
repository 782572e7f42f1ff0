"""The S3 server of moto, at 127.0.0.1. Its conditional requests follow each other. s3.py PORT

moto looks whether an object is there, then writes it, in a thread for each request. Of two creators at the same time
both could win, which Amazon's service rules out.
"""

import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import run_simple


class ConditionsInTurn:
    def __init__(self, application):
        self.application = application
        self.turn = threading.Lock()

    def __call__(self, environ, start_response):
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with self.turn:
                return self.application(environ, start_response)
        return self.application(environ, start_response)


if __name__ == "__main__":
    application = ConditionsInTurn(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
