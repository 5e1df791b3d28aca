"""The action format of WebShop: `search[...]` and `click[...]`; buying ends an episode."""

from __future__ import annotations

from env_service.action_format import PlainFormat


class WebShopFormat(PlainFormat):
    exploration = (4, 12)


Format = WebShopFormat
