-- How keys stand under policies, as core/bans/standing.py. A standing is a table like `Standing`, with the `window` and
-- the `forgive` of its policy, so that it is known when there is nothing left to remember; both are 0 where it was
-- loaded and its policy has not struck since.

local function standings_of(key)
  local row = redis.call("HGET", KEYS[STANDINGS], key)
  local found, at = {}, 1
  while row and at <= #row do
    local s, name, many = { strikes = {} }, nil, nil
    s.rung, s.last, s.until_at, s.window, s.forgive, many, name, at = unpack_from("<I4i8i8i8i8HH", row, at)
    found[sub(row, at, at + name - 1)] = s
    at = at + name
    for place = 1, many do
      local strike, source = {}, nil
      strike.at, strike.weight, source, at = unpack_from("<i8I8H", row, at)
      strike.source = sub(row, at, at + source - 1)
      at = at + source
      s.strikes[place] = strike
    end
  end
  return found
end

local function rung_at(s)
  local clean = max(now - max(s.last, s.until_at), 0)
  return max(s.rung - floor(clean / s.forgive), 0)
end

-- When there is nothing left to remember.
local function over_at(s)
  if s.forgive == 0 then
    return max(s.last, s.until_at, now) + LONGEST_MS * 1000
  end
  local ends = max(s.until_at, max(s.last, s.until_at) + s.rung * s.forgive)
  for _, strike in ipairs(s.strikes) do
    ends = max(ends, strike.at + s.window)
  end
  return ends
end

-- The member of `over` for a standing.
local function member_of(key, name)
  return pack("<H", #name) .. name .. key
end

local function keep_standings(key, found)
  local parts, ends = {}, 0
  for name, s in pairs(found) do
    local over = over_at(s)
    if over <= now then
      redis.call("ZREM", KEYS[OVER], member_of(key, name))
    else
      redis.call("ZADD", KEYS[OVER], text_of(over), member_of(key, name))
      ends = max(ends, over)
      local head = pack("<I4i8i8i8i8HH", s.rung, s.last, s.until_at, s.window, s.forgive, #s.strikes, #name)
      parts[#parts + 1] = head .. name
      for _, strike in ipairs(s.strikes) do
        parts[#parts + 1] = pack("<i8I8H", strike.at, strike.weight, #strike.source) .. strike.source
      end
    end
  end
  if ends == 0 then
    redis.call("HDEL", KEYS[STANDINGS], key)
    return
  end
  redis.call("HSET", KEYS[STANDINGS], key, table.concat(parts))
  keep(STANDINGS, ends)
  keep(OVER, ends)
end

local function forget_standing(member)
  redis.call("ZREM", KEYS[OVER], member)
  local size = unpack_from("<H", member)
  local name, key = sub(member, 3, size + 2), sub(member, size + 3)
  local found = standings_of(key)
  if found[name] then
    found[name] = nil
    keep_standings(key, found)
  end
end

-- Make room for one more standing; tell whether one had to be forgotten that was not over.
local function make_room(most)
  local over = redis.call("ZRANGEBYSCORE", KEYS[OVER], "-inf", text_of(now), "LIMIT", 0, 2)
  for _, member in ipairs(over) do
    forget_standing(member)
  end
  if redis.call("ZCARD", KEYS[OVER]) < most then
    return false
  end
  forget_standing(redis.call("ZRANGE", KEYS[OVER], 0, 0)[1])
  return true
end

-- Count a strike; true if a ban is due.
local function count_strike(s, policy, weight, source)
  s.window, s.forgive = policy.window, policy.forgive
  if now < s.until_at then
    return false
  end
  s.rung = rung_at(s)
  s.last = now
  local at, kept, total = now - now % policy.grain, {}, 0
  for _, strike in ipairs(s.strikes) do
    if strike.at > now - policy.window and (source == "" or strike.source ~= source) then
      kept[#kept + 1] = strike
      total = total + strike.weight
    end
  end
  weight = min(weight, policy.amount)
  local newest = kept[#kept]
  if newest and newest.at == at and source == "" then
    total = total - newest.weight
    kept[#kept] = { at = at, weight = min(newest.weight + weight, policy.amount), source = "" }
  else
    kept[#kept + 1] = { at = at, weight = weight, source = source }
  end
  total = total + kept[#kept].weight
  while total - kept[1].weight >= policy.amount do
    total = total - table.remove(kept, 1).weight
  end
  s.strikes = kept
  return total >= policy.amount
end

-- Go one rung up, and return how long the ban lasts, as `BanPolicy.length_us`.
local function next_length(s, policy, key)
  s.rung = s.rung + 1
  s.strikes = {}
  local length = policy.ladder[min(s.rung, #policy.ladder)]
  if policy.jitter > 0 then
    local share = tonumber(sub(redis.sha1hex(policy.name .. "\n" .. key .. "\n" .. text_of(s.rung)), 1, 4), 16)
    length = min(length + floor(floor(length * policy.jitter) / 65536) * share, policy.longest)
  end
  s.until_at = now + length
  return length
end
