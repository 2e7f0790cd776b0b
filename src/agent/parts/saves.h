// Checkpoints that ranks of this node spoke of: to which places, and which are behind.
#pragma once

#include <map>
#include <set>
#include <string>

namespace keepstep::agent {

class Saves {
 public:
  void spoke_of(const std::string& where) {
    if (!where.empty() && places_.size() < kMost) {
      places_.insert(where);
    }
  }
  void late(const std::string& where, int64_t step) { late_.try_emplace(where, step); }
  bool in_time(const std::string& where) { return late_.erase(where) > 0; }  // again: it was late

  const std::set<std::string>& places() const { return places_; }
  const std::map<std::string, int64_t>& late() const { return late_; }  // since which step

 private:
  static constexpr size_t kMost = 64;
  std::set<std::string> places_;
  std::map<std::string, int64_t> late_;
};

}  // namespace keepstep::agent
