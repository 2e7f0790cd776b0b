// Text from jobs, storage and other machines on a terminal: shown as what it is, never obeyed.
//
// A terminal obeys control characters (it moves the cursor, sets titles, answers as if somebody typed), and characters
// that change the direction of writing make text read as another. python/keepstep/_terminal.py does the same.
#pragma once

#include <string>
#include <string_view>

namespace keepstep {

// `text` with escapes in the place of what a terminal would obey: C0 (but tab and newline), delete, C1, marks,
// embeddings, overrides and isolates of bidirectional text (UAX 9): \x1b, \u202e. Bytes that are no UTF-8: \xff.
std::string terminal_text(std::string_view text);

}  // namespace keepstep
