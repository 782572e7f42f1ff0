"""Creates a container on azurite: azure_container.py ENDPOINT NAME, with the key in AZURE_STORAGE_ACCOUNT_KEY."""

import base64
import hashlib
import hmac
import os
import sys
import urllib.request
from email.utils import formatdate

endpoint, name = sys.argv[1:]
account = endpoint.rsplit("/", 1)[1]
headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
signed = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
text = "PUT" + "\n" * 12 + signed + f"/{account}/{account}/{name}\nrestype:container"
key = base64.b64decode(os.environ["AZURE_STORAGE_ACCOUNT_KEY"])
signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
headers["Authorization"] = f"SharedKey {account}:{signature}"
urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}?restype=container", None, headers, method="PUT"))
