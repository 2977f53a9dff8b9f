-- Places in the future, as core/windows/bookings.py. A window with bookings has `booked`, a list of {moment, units},
-- `waiting`, a list of moments, both in order, and `seen`, the last look. Made when first needed: most calls book
-- nothing.

local bookings

local function make_bookings()
  local b = {}

  local function copied(w)
    local twin = {}
    for name, value in pairs(w) do
      twin[name] = value
    end
    return twin
  end

  -- A copy whose changes are nobody's else.
  function b.copy(w)
    local twin = copied(w)
    if w.booked then
      twin.booked, twin.waiting = {}, {}
      for place, entry in ipairs(w.booked) do
        twin.booked[place] = { entry[1], entry[2] }
      end
      for place, moment in ipairs(w.waiting) do
        twin.waiting[place] = moment
      end
    end
    return twin
  end

  function b.open(w, now)
    w.booked, w.waiting, w.seen = {}, {}, now
  end

  local function counts_from(w, at)
    return w.exact and at or at - at % w.slice
  end

  local function leaves(w, at)
    return counts_from(w, at) + (w.exact and w.window or w.span + w.slice)
  end

  function b.spent(w)
    local units = w.spent
    for _, entry in ipairs(w.booked) do
      units = units + entry[2]
    end
    return units
  end

  function b.newest(w)
    local last = w.booked[#w.booked]
    return last and leaves(w, last[1]) - w.span or w.newest
  end

  function b.leaves(w)
    local first = w.booked[1]
    return (w.spent > 0 or not first) and w.leaves or leaves(w, first[1])
  end

  local function move(moment, units, w)
    if w.exact then
      units = min(units, w.resolution)
    end
    ring_of(w).charge(w, moment, units, w.spent + units)
  end

  local function change(w, counts_at, units)
    w.dirty = true
    local place = 1
    while w.booked[place] and w.booked[place][1] < counts_at do
      place = place + 1
    end
    local entry = w.booked[place]
    if not entry or entry[1] ~= counts_at then
      entry = { counts_at, 0 }
      table.insert(w.booked, place, entry)
    end
    entry[2] = entry[2] + units
    if entry[2] == 0 then
      table.remove(w.booked, place)
    end
  end

  local function step_back(w, now)
    local step, before = w.seen - now, w.booked
    if #before > 0 or #w.waiting > 0 then
      renew(w)
    end
    w.booked = {}
    for _, entry in ipairs(before) do
      change(w, counts_from(w, entry[1] - step), entry[2])
    end
    for place, moment in ipairs(w.waiting) do
      w.waiting[place] = moment - step
    end
  end

  function b.settle(w, now)
    if now < w.seen then
      step_back(w, now)
    end
    w.seen, w.dirty = now, true
    while w.booked[1] and w.booked[1][1] <= now do
      local entry = table.remove(w.booked, 1)
      move(entry[1], entry[2], w)
    end
    while w.waiting[1] and w.waiting[1] <= now do
      table.remove(w.waiting, 1)
    end
    ring_of(w).look(w, now)
  end

  b.look = b.settle

  function b.room(w, from, amount, cost, ahead)
    local room = amount - ahead - max(cost, 1)
    if room < 0 then
      return NEVER
    end
    local ring, imagined, found, at = ring_of(w), copied(w), NEVER, from
    for _, entry in ipairs(w.booked) do
      local moment, units = entry[1], entry[2]
      if found == NEVER and at < moment then
        local fits = at + ring.wait(imagined, at, room)
        found = fits < moment and fits or NEVER
      end
      move(moment, units, imagined)
      at = max(at, moment)
      if found ~= NEVER and cost > 0 and moment < leaves(w, found) and imagined.spent + ahead + cost > amount then
        found = NEVER
      end
    end
    return found ~= NEVER and found or at + ring.wait(imagined, at, room)
  end

  function b.book(w, now, moment, units, waits)
    if waits then
      local place = #w.waiting + 1
      while place > 1 and w.waiting[place - 1] > moment do
        place = place - 1
      end
      table.insert(w.waiting, place, moment)
    end
    w.dirty = true
    local counts_at = counts_from(w, moment)
    if counts_at <= now then
      move(now, units, w)
    elseif units > 0 then
      change(w, counts_at, units)
    end
  end

  function b.remove(w, now, at, units)
    b.settle(w, now)
    local counts_at = counts_from(w, at)
    if counts_at <= now then
      return ring_of(w).remove(w, now, at, units)
    end
    for _, entry in ipairs(w.booked) do
      if entry[1] == counts_at and units > 0 and units <= entry[2] then
        change(w, counts_at, -units)
        return true
      end
    end
    return false
  end

  function b.leave(w, moment)
    for place, other in ipairs(w.waiting) do
      if other == moment then
        table.remove(w.waiting, place)
        w.dirty = true
        return true
      end
    end
    return false
  end

  function b.converted(w, limit, now)
    b.settle(w, now)
    local twin = converted(w, limit, now)
    b.open(twin, now)
    twin.waiting = w.waiting
    for _, entry in ipairs(w.booked) do
      b.book(twin, now, entry[1], entry[2], false)
    end
    return twin
  end

  function b.pack(w)
    local parts = { pack("<Bi8I4I4", 4, w.seen, #w.booked, #w.waiting) }
    for _, entry in ipairs(w.booked) do
      parts[#parts + 1] = pack("<i8I8", entry[1], entry[2])
    end
    for _, moment in ipairs(w.waiting) do
      parts[#parts + 1] = pack("<i8", moment)
    end
    return table.concat(parts)
  end

  function b.unpack(packed, limit, from)
    local _, seen, many, waiters, at = unpack_from("<Bi8I4I4", packed, from)
    local w = unpack_ring(packed, limit, at + 16 * many + 8 * waiters)
    b.open(w, seen)
    for place = 1, many do
      w.booked[place] = { unpack_from("<i8I8", packed, at) }
      at = at + 16
    end
    for place = 1, waiters do
      w.waiting[place] = unpack_from("<i8", packed, at)
      at = at + 8
    end
    return w
  end

  return b
end

local function booking()
  bookings = bookings or make_bookings()
  return bookings
end
