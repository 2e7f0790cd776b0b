// One function for each alternative of a variant, for std::visit.
#pragma once

namespace keepstep {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace keepstep
