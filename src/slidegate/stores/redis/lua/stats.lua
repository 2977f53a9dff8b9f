-- Write rows of statistics: KEYS are their hashes, ARGV[1] the time in microseconds (empty: the server's), ARGV[2] the
-- worker, and behind that for each row its value and for how many microseconds it is kept.
--
-- A hash holds the rows of all workers under one rollup and number. It goes by its TTL; a row in it begins with the
-- moment until which it is kept, because a hash that other workers go on writing would keep the rows of the dead.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

for place, key in ipairs(KEYS) do
  local value, kept = ARGV[2 * place + 1], tonumber(ARGV[2 * place + 2])
  if kept > 0 then
    redis.call('HSET', key, ARGV[2], string.format('%020.0f', now + kept) .. value)
    local ttl = math.ceil(kept / 1000) + 1
    if redis.call('PTTL', key) < ttl then -- never less than the longest row in it needs
      redis.call('PEXPIRE', key, ttl)
    end
  else
    redis.call('HDEL', key, ARGV[2])
  end
  if string.sub(key, -2) == ':0' then
    local rows = redis.call('HGETALL', key)
    for field = 1, #rows, 2 do
      if tonumber(string.sub(rows[field + 1], 1, 20)) <= now then
        redis.call('HDEL', key, rows[field])
      end
    end
  end
end
return #KEYS
