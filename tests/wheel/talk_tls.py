"""TLS by keepstep's OpenSSL and by Python's in one process, beside torch: python talk_tls.py S3-URL ENDPOINT AUTHORITY

The URL names no certificates: keepstep finds them by itself.
"""

import ssl
import sys
import urllib.error
import urllib.request

import torch

import keepstep
from keepstep import _checkpoint

url, endpoint, authority = sys.argv[1:]
store = _checkpoint.open_store(url)
store.put("greeting", b"hello")
context = ssl.create_default_context(cafile=authority)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
try:
    opener.open(endpoint, timeout=20)
except urllib.error.HTTPError as refusal:
    print("ssl:", refusal.code)
print("store:", store.read_all("greeting", 100).decode(), "beside", torch.__name__, keepstep.__name__)
