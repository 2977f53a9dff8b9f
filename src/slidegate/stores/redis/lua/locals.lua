-- What the other parts call by short names.

local floor, max, min = math.floor, math.max, math.min
local sub, match = string.sub, string.match
local pack, unpack_from = struct.pack, struct.unpack
