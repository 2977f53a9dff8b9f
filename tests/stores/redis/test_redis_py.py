"""What we use of redis-py, all of it public: where one of these goes, this test says so before anybody connects."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.credentials import UsernamePasswordCredentialProvider

from slidegate.core.errors import StoreUnavailable
from slidegate.stores.redis import RedisStore

from ...redis_servers import RedisServer, needs_redis


@needs_redis
async def test_a_connection_is_made_as_the_client_says(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "ann", "reset", "on", ">pw", "~*", "&*", "+@all")
    try:
        provider = UsernamePasswordCredentialProvider("ann", "pw")
        for how in ({"username": "ann", "password": "pw"}, {"credential_provider": provider}):
            client = Redis(host="127.0.0.1", port=server.port, db=5, client_name="middleware-test", **how)  # type: ignore[arg-type]
            store = RedisStore(client, prefix="redis-py")
            await store.reset("user:ann")
            (line,) = [row for row in server.command("CLIENT", "LIST").splitlines() if b"name=middleware-test" in row]
            assert b" db=5 " in line
            assert b" user=ann " in line
            await store.close()
            await client.aclose()
        wrong = RedisStore(Redis(host="127.0.0.1", port=server.port, username="ann", password="no"))
        with pytest.raises(StoreUnavailable, match=r"WRONGPASS|invalid username"):
            await wrong.reset("user:ann")
        await wrong.close()
    finally:
        server.command("ACL", "DELUSER", "ann")
