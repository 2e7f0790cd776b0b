// The known word nearest to a mistyped one. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keepstep::cli {

// Edit distance, counting swaps of neighboring letters (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The member of `known` nearest to `word`, or empty if none is close enough (a third of the letters may differ, at
// least two; a prefix of three letters or more is always close enough).
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace keepstep::cli
