// The only status type of keepstep: absl::Status, with a few helpers that keep error paths short.
//
// An error message says what happened, to which object, and what to do. Errors are values in C++; exceptions exist only
// at the Python boundary.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace keepstep {

using absl::Status;
using absl::StatusOr;

// `what` failed with errno `error`. The status code is the one that errno maps to ("open /x: Permission denied").
inline Status errno_status(std::string_view what, int error = errno) {
  return absl::ErrnoToStatus(error, absl::string_view(what.data(), what.size()));
}

}  // namespace keepstep

#define KEEPSTEP_RETURN_IF_ERROR(expr)          \
  do {                                          \
    if (auto status_ = (expr); !status_.ok()) { \
      return status_;                           \
    }                                           \
  } while (false)

#define KEEPSTEP_CONCAT_INNER(a, b) a##b
#define KEEPSTEP_CONCAT(a, b) KEEPSTEP_CONCAT_INNER(a, b)
#define KEEPSTEP_ASSIGN_OR_RETURN(lhs, expr) \
  KEEPSTEP_ASSIGN_OR_RETURN_IMPL(KEEPSTEP_CONCAT(result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): names and declarations cannot stand in parentheses
#define KEEPSTEP_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!result.ok()) {                                     \
    return result.status();                               \
  }                                                       \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
