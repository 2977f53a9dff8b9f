-- Bans at rest, and how those are found that refuse a request: in the hash `list`, a ban for each key. Bans of networks
-- stand there under their text; the field "" holds the lengths of their prefixes, so that an address is looked up once
-- for each length in use. Made when first needed: most calls of the script of windows look nothing up.

local LENGTHS = ""
local LIFE_BYTES = 16

-- Which life of the data this is, and the number of hand-backs; "" where the data has no life yet, or was lost.
local function state_of(life, hands)
  return life and life ~= "" and life .. (hands or 0) or ""
end

local function make_banned(list)
  local b = {}

  function b.unpack(key, row)
    local ban = { key = key }
    local from, by
    ban.made, ban.ends, ban.wall, ban.prolong, ban.level, by, from = unpack_from("<i8i8i8i8I4H", row)
    ban.by, ban.reason = sub(row, from, from + by - 1), sub(row, from + by)
    return ban
  end

  function b.pack(ban)
    return pack("<i8i8i8i8I4H", ban.made, ban.ends, ban.wall, ban.prolong, ban.level, #ban.by) .. ban.by .. ban.reason
  end

  function b.is_over(ban, now, wall)
    return ban.ends >= 0 and (now >= ban.ends or wall >= ban.wall + ban.ends - ban.made)
  end

  -- The bans' time, and how far it is ahead of the server's. It never runs back, see core/bans/strikes.py: where the
  -- server's does, the lead grows by as much, for all workers.
  function b.time(meta, wall, ahead, latest)
    if wall + ahead < latest then
      ahead = latest - wall
      redis.call("HSET", meta, "ahead", string.format("%.0f", ahead))
    end
    return wall + ahead, ahead
  end

  -- The lengths of prefixes in use: {["4/24"] = how many bans}.
  function b.lengths()
    local found = {}
    for length, many in string.gmatch(redis.call("HGET", list, LENGTHS) or "", "(%d/%d+)=(%d+)") do
      found[length] = tonumber(many)
    end
    return found
  end

  -- The length of the prefix that a key has if it is a network. A key that only looks like one does no harm: a
  -- look-up for its length finds nothing.
  local function length_of(key)
    if find(key, "^%d+%.%d+%.%d+%.%d+$") then
      return "4/32"
    end
    local four = string.match(key, "^%d+%.%d+%.%d+%.%d+/(%d+)$")
    local six = string.match(key, "^[%x:]+/(%d+)$")
    return four and "4/" .. four or six and "6/" .. six
  end

  -- Take note that a ban was put in or taken out.
  function b.count_length(key, step)
    local length = length_of(key)
    if not length then
      return
    end
    local found, parts = b.lengths(), {}
    found[length] = (found[length] or 0) + step
    for name, many in pairs(found) do
      if many > 0 then
        parts[#parts + 1] = name .. "=" .. many
      end
    end
    if #parts > 0 then
      redis.call("HSET", list, LENGTHS, table.concat(parts, " "))
    else
      redis.call("HDEL", list, LENGTHS)
    end
  end

  -- How many bans there are.
  function b.many()
    return redis.call("HLEN", list) - redis.call("HEXISTS", list, LENGTHS)
  end

  -- Eight groups of an IPv6 address as RFC 5952 writes them: the first of the longest runs of zeros is left out.
  local function text_of_groups(groups)
    local best, most, from = 0, 1, 0
    for place = 1, 9 do
      if groups[place] ~= "0" then
        if place - from - 1 > most then
          best, most = from + 1, place - from - 1
        end
        from = place
      end
    end
    if best == 0 then
      return table.concat(groups, ":")
    end
    return table.concat(groups, ":", 1, best - 1) .. "::" .. table.concat(groups, ":", best + most, 8)
  end

  -- The text of the network of `length` bits around an address of 4 or 16 bytes, as core/addresses.py writes it.
  local function network(address, length)
    local bytes = { string.byte(address, 1, -1) }
    for place, byte in ipairs(bytes) do
      local cut = 2 ^ (8 - min(max(length - 8 * (place - 1), 0), 8))
      bytes[place] = byte - byte % cut
    end
    if #bytes == 4 then
      return table.concat(bytes, ".") .. (length < 32 and "/" .. length or "")
    end
    local groups = {}
    for place = 1, 8 do
      groups[place] = string.format("%x", bytes[2 * place - 1] * 256 + bytes[2 * place])
    end
    return text_of_groups(groups) .. "/" .. length
  end

  -- The guards of a request, packed at a place of `guards`: its keys and addresses. Answers with {key, row} of each ban
  -- in force, and with the place of the next request.
  function b.of_request(guards, at, now, wall)
    local names, many, kind, size = {}, nil, nil, nil
    many, at = unpack_from("<H", guards, at)
    for _ = 1, many do
      kind, size, at = unpack_from("<BI4", guards, at)
      local what = sub(guards, at, at + size - 1)
      at = at + size
      if kind == 0 and size > 0 then
        names[#names + 1] = what
      elseif kind > 0 then
        b.known_lengths = b.known_lengths or b.lengths()
        for length in pairs(b.known_lengths) do
          if tonumber(sub(length, 1, 1)) == kind then
            names[#names + 1] = network(what, tonumber(sub(length, 3)))
          end
        end
      end
    end
    local found = {}
    for place, row in ipairs(#names > 0 and redis.call("HMGET", list, unpack(names)) or {}) do
      if row and not b.is_over(b.unpack(names[place], row), now, wall) then
        found[#found + 1] = { names[place], row }
      end
    end
    return found, at
  end

  -- Bans as they are sent: the time, then key and row of each.
  function b.told(found, now)
    local parts = { pack("<i8", now) }
    for place, ban in ipairs(found) do
      parts[place + 1] = pack("<HH", #ban[1], #ban[2]) .. ban[1] .. ban[2]
    end
    return table.concat(parts)
  end

  return b
end
