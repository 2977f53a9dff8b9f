-- Windows at rest, as core/windows/codec.py writes them, and moving from one ring to the other, as
-- core/windows/rings.py. A stored value is a version, a serial, and the window. A window that is made anew has another
-- serial.

local VERSION = 1

local placing -- makes the functions about places, in the script that has them

local function ring_of(w)
  if w.places then
    return placing()
  elseif w.ends then
    return periods_ring()
  end
  return w.exact and times_ring() or counts_ring()
end

local function new_window(limit, exact)
  local w = { exact = exact, spent = 0, newest = 0, leaves = 0, older = "", full = "", running = 0 }
  w.window, w.slice, w.slices, w.resolution = limit.window, limit.slice, limit.slices, limit.resolution
  w.span = exact and limit.window or limit.slices * limit.slice
  w.ends = limit.ends
  return w
end

local function converted(w, limit, now)
  local ring, fresh = ring_of(w), new_window(limit, limit.exact)
  ring.look(w, now)
  fresh.serial, fresh.dirty = w.serial, true
  if fresh.exact then
    local slices = w.spent > 0 and #w.full / 4 or -1
    local newer = w.spent
    for place = 0, slices do
      local count = place == slices and w.running or count_at(w, place)
      newer = newer - count
      local kept = min(count, max(limit.resolution - newer, 0))
      local at = min(w.newest - (slices - place) * w.slice - 1, now)
      if kept < count then
        fresh.surplus, fresh.surplus_at = (fresh.surplus or 0) + count - kept, at
      end
      times_ring().add(fresh, at, kept)
    end
  else
    if w.surplus and w.surplus_at > now - w.window then
      counts_ring().charge(fresh, w.surplus_at, w.surplus)
    end
    for place = 0, w.spent - 1 do
      counts_ring().charge(fresh, time_at(w, place), 1)
    end
  end
  return fresh
end

local function pack_ring(w)
  if w.ends then
    return pack("<Bi8I8", 5, w.newest, w.spent)
  elseif not w.exact then
    return pack("<Bi8I4I8", 3, w.newest, w.running, w.spent) .. w.full
  elseif w.surplus then
    return pack("<BI8i8Hi8", 2, w.surplus, w.surplus_at, w.spent, w.newest) .. w.older
  end
  return pack("<BHi8", 1, w.spent, w.newest) .. w.older
end

local function unpack_ring(packed, limit, from)
  local kind = unpack_from("<B", packed, from)
  local w = new_window(limit, kind < 3)
  local _, rest
  if kind == 5 then
    _, w.newest, w.spent = unpack_from("<Bi8I8", packed, from)
    return w
  end
  if kind == 3 then
    _, w.newest, w.running, w.spent, rest = unpack_from("<Bi8I4I8", packed, from)
    w.full = sub(packed, rest)
    w.leaves = w.spent > 0 and w.newest + (w.slices - #w.full / 4) * w.slice or 0
    return w
  elseif kind == 2 then
    _, w.surplus, w.surplus_at, w.spent, w.newest, rest = unpack_from("<BI8i8Hi8", packed, from)
  elseif kind == 1 then
    _, w.spent, w.newest, rest = unpack_from("<BHi8", packed, from)
  else
    error("a window was written by another version of slidegate", 0)
  end
  w.older = sub(packed, rest)
  w.leaves = w.spent > 0 and time_at(w, 0) + w.window or 0
  return w
end
