-- Limits, as a request has them.

local LIMIT_BYTES = 39
-- The modes, of which the first two may be combined.
local COUNT_DENIED = 1
local QUOTA = 2
local PERMITS = 4
local PERIOD_KEPT_US = 3600000000
local WINDOW_KEPT_US = 4000 -- slices are whole microseconds, of which there are at most 3,600
-- The start of the fields of windows and of permits; those of quotas have none.
local QUOTA_ROW = "quota"
local WINDOW = "w"
local PERMIT_ROW = "p"

-- Return what a field in a hash of windows has: QUOTA_ROW, WINDOW or PERMIT_ROW; another text for any other field.
local function kind_of(field)
  if #field == FIELD_BYTES then
    return QUOTA_ROW
  end
  return #field == 1 + FIELD_BYTES and sub(field, 1, 1) or ""
end

-- Return when a value in a hash of windows ends: the last unit of a window or of a quota leaves, the last permit is free. It
-- ends at 0 if it is none of these, or damaged.
local function end_of_value(field, value)
  local kind, ends = kind_of(field), 0
  if kind == QUOTA_ROW and #value >= HEAD_BYTES then
    ends = select(3, unpack_from(HEAD, value))
  elseif kind == WINDOW and #value >= ENDS_BYTES then
    ends = unpack_from("<i8", value)
  elseif kind == PERMIT_ROW then
    for at = 1, #value - PERMIT_BYTES + 1, PERMIT_BYTES do
      ends = max(ends, (select(2, unpack_from(PERMIT, value, at))))
    end
  end
  return ends
end

-- Return how long a value is kept after its end: a quota, until the clock of no worker can be behind it; a window, because
-- units leave some microseconds later where its amount has crossed the resolution since they were spent.
local function kept_after_end(field)
  local kind = kind_of(field)
  if kind == QUOTA_ROW then
    return PERIOD_KEPT_US
  end
  return kind == WINDOW and WINDOW_KEPT_US or 0
end

local permits -- defined by the first concurrency limit of a call

-- Unpack a limit: the field, the amount, three numbers, the resolution and the modes.
local function limit_of(text)
  local field = sub(text, 1, FIELD_BYTES)
  local amount, first, second, third, resolution, modes = unpack_from("<I4i8i8i8HB", text, FIELD_BYTES + 1)
  local limit = {
    counter = ring,
    field = WINDOW .. field,
    starts = 1 + ENDS_BYTES,
    amount = amount,
    step = first,
    span = second,
    resolution = resolution,
    kept = 0,
    count_denied = modes % QUOTA == COUNT_DENIED,
  }
  if modes >= PERMITS then
    permits = permits or define_permits()
    limit.counter, limit.field, limit.starts = permits, PERMIT_ROW .. field, 1
    limit.worker, limit.lease, limit.held = sub(text, 13, 20), second, third
  elseif modes >= QUOTA then
    -- A ring with one slice from 1970 to the end of the period, as in core/quotas.py. The caller's clock chooses three
    -- successive periods, and the server's clock decides which of them it is.
    local ends = first > now and first or second > now and second or third
    if ends <= now then
      error("the clock of a worker is behind the server's by more than a period of a quota; synchronize it", 0)
    end
    limit.field, limit.starts = field, 1
    limit.step, limit.span, limit.kept = ends + 1, 0, PERIOD_KEPT_US
  end
  return limit
end
