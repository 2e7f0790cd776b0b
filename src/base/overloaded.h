// A visitor for std::visit with one function per alternative of a variant.
#pragma once

namespace keepstep {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace keepstep
