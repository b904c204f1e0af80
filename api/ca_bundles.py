"""Certificates of the authorities that a connection's server is trusted by."""

import re
import ssl
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

LARGEST_BUNDLE: Final = 64 * 1024
"""Characters of a bundle."""

_LABEL: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,64})-----")


def checked_ca_bundle(text: str) -> str:
    """Return the certificates of a PEM text, one after another and without what stands between them.

    Source: RFC 7468, 5: certificates have the label CERTIFICATE, and text outside of the blocks is no part of
    them.

    Raises:
        ValueError: it holds no certificate, one that cannot be read, or something else, such as a private
            key; the message repeats nothing of it.
    """
    if len(text) > LARGEST_BUNDLE:
        raise ValueError(f"the bundle is larger than {LARGEST_BUNDLE} characters")
    for label in _LABEL.findall(text):
        if label != "CERTIFICATE":
            raise ValueError("a bundle holds certificates only, and this one holds something else")
    try:
        found = x509.load_pem_x509_certificates(text.encode())
        bundle = "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in found)
        # Calls are sent through OpenSSL, which has to read them as well.
        ssl.create_default_context(cadata=bundle)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError("there is no certificate in PEM form, or one that cannot be read") from error
    return bundle
