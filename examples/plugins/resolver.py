#!/usr/bin/env python3
"""resolver: gives the containers of a network their name servers. It stands behind another plugin."""

import sys

import msgspec

from podwire.cni import DNS, Plugin, Request, Result, main


class Config(msgspec.Struct):
    nameservers: tuple[str, ...]


def add(request: Request[Config], _kernel: None) -> Result:
    return msgspec.structs.replace(request.need_prev_result(), dns=DNS(request.config.nameservers))


if __name__ == "__main__":
    sys.exit(main(Plugin("resolver", "resolver: name servers for a network", Config, add)))
