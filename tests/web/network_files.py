"""Files that say whose networks are, as makers of such files write them."""

import os
from pathlib import Path
from typing import Any

from mmdb_writer import MMDBWriter
from netaddr import IPSet

from slidegate import network
from slidegate.web.networks import Network

TENCENT = {"autonomous_system_number": 132203, "autonomous_system_organization": "Tencent"}
OTHER = {"autonomous_system_number": 64500, "autonomous_system_organization": "Other"}
ASN = {
    "43.128.0.0/14": TENCENT,
    "101.32.0.0/16": TENCENT,
    "203.0.0.0/16": OTHER,
    "10.0.0.0/8": OTHER,
    "2402:4e00::/32": TENCENT,
}


def written(path: Path, records: dict[str, Any], version: int = 6) -> Path:
    """Write a file in MaxMind's format, and put it in its place in one step."""
    writer = MMDBWriter(version, "test", ipv4_compatible=version == 6)
    for text, record in records.items():
        writer.insert_network(IPSet([text]), record)
    made = path.with_suffix(".new")
    writer.to_db_file(str(made))
    os.replace(made, path)
    return path


def operators(directory: Path) -> Network:
    return network(written(directory / "asn.mmdb", ASN))


def countries(directory: Path) -> Network:
    records = {
        "198.51.0.0/16": {"country": {"iso_code": "NL"}, "registered_country": {"iso_code": "US"}},
        "203.0.0.0/16": {"registered_country": {"iso_code": "BE"}},
        "2a02::/16": {"country": {"iso_code": "DE"}},
    }
    return network(written(directory / "country.mmdb", records))
