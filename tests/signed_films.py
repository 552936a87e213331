"""Files with C2PA manifests, signed offline by a certificate that is made here."""

import datetime
import io
from functools import cache
from typing import Any

import c2pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER, TOOL = "Example Studio", "example camera"
IPTC = "http://cv.iptc.org/newscodes/digitalsourcetype/"
GENERATED, CAPTURED = f"{IPTC}trainedAlgorithmicMedia", f"{IPTC}digitalCapture"
_BEGIN = datetime.datetime(2026, 1, 1)
_END = _BEGIN + datetime.timedelta(days=36_500)


@cache
def _signer_info() -> c2pa.C2paSignerInfo:
    """A root, and a certificate that it signs: no certificate of C2PA signs itself."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    root, signer = (
        x509.Name([
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ISSUER),
        ])
        for name in ("root", "signer")
    )  # fmt: skip
    certificates = []
    for number, (subject, key, is_root) in enumerate(
        ((root, keys[0], True), (signer, keys[1], False))
    ):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root)
            .public_key(key.public_key())
            .serial_number(number + 1)
            .not_valid_before(_BEGIN)
            .not_valid_after(_END)
            .add_extension(x509.BasicConstraints(is_root, None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, content_commitment=False, key_encipherment=False,
                    data_encipherment=False, key_agreement=False, key_cert_sign=is_root,
                    crl_sign=is_root, encipher_only=False, decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), False
            )
        )  # fmt: skip
        if not is_root:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
            builder = builder.add_extension(usage, critical=False)
        certificates.append(builder.sign(keys[0], hashes.SHA256()))
    pem = b"".join(c.public_bytes(serialization.Encoding.PEM) for c in reversed(certificates))
    key_pem = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return c2pa.C2paSignerInfo(alg=b"es256", sign_cert=pem, private_key=key_pem, ta_url=None)


def signed(
    data: bytes,
    mime_type: str = "video/mp4",
    source_type: str = GENERATED,
    *,
    parent: bytes | None = None,
    remote: str | None = None,
) -> bytes:
    """A file with a manifest.

    Args:
        data: The file.
        mime_type: Its type.
        source_type: What the action `c2pa.created` says of how the file was made.
        parent: A signed file that this one is an edit of; it then says `c2pa.opened`.
        remote: Address of the manifest, which is then not in the file.
    """
    action: dict[str, Any] = {"action": "c2pa.created", "digitalSourceType": source_type}
    if parent is not None:
        action = {"action": "c2pa.opened", "parameters": {"ingredientIds": ["parent"]}}
    builder = c2pa.Builder({
        "claim_generator_info": [{"name": TOOL, "version": "1"}],
        "format": mime_type,
        "assertions": [{"label": "c2pa.actions", "data": {"actions": [action]}}],
    })  # fmt: skip
    if parent is not None:
        ingredient = {"title": "parent", "relationship": "parentOf", "label": "parent"}
        builder.add_ingredient(ingredient, mime_type, io.BytesIO(parent))
    if remote is not None:
        builder.set_no_embed()
        builder.set_remote_url(remote)
    output = io.BytesIO()
    builder.sign(c2pa.Signer.from_info(_signer_info()), mime_type, io.BytesIO(data), output)
    return output.getvalue()
