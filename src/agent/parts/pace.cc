#include "agent/parts/pace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

double seconds_of(brain::Time time) { return std::chrono::duration<double>(time).count(); }

std::string time_text(brain::Time time) {
  const double seconds = seconds_of(time);
  return seconds < 1 ? absl::StrFormat("%.3g ms", seconds * 1e3) : absl::StrFormat("%.3g s", seconds);
}

}  // namespace

void Pace::note(brain::Rank rank, const rank::CommitRecord& record) {
  window_.add(record.identity, rank, brain::Time(record.computed_ns), brain::Time(record.committed_ns));
}

void Pace::watch() {
  if (core_.brain.prepared() == nullptr || core_.end.has_value()) {
    return;
  }
  const auto paces = window_.take(core_.ranks_here(), brain::Time(monotonic_ns()));
  if (!paces.has_value()) {
    return;
  }
  const brain::Identity identity = window_.identity();
  if (core_.config.node == 0) {
    on_paces(identity, *paces);
    return;
  }
  core_.route(0, messages::Paces{identity, *paces});
}

Status Pace::on_report(brain::NodeId from, const messages::Paces& report) {
  if (core_.brain.prepared() == nullptr || report.identity != core_.brain.identity()) {
    return absl::OkStatus();  // from a generation that is over
  }
  const brain::RankTable& table = core_.brain.prepared()->table;
  for (const brain::RankPace& pace : report.ranks) {
    if (pace.rank >= table.world_size() || table.locate(pace.rank).node != from) {
      return absl::InvalidArgumentError(absl::StrFormat("the pace of rank %d, which is not on that node", pace.rank));
    }
  }
  on_paces(report.identity, report.ranks);
  return absl::OkStatus();
}

// Node 0.
void Pace::on_paces(brain::Identity identity, const std::vector<brain::RankPace>& paces) {
  if (identity != core_.brain.identity()) {
    return;
  }
  const brain::RankTable& table = core_.brain.prepared()->table;
  for (const brain::StragglerNews& news : detector_.step(identity, table.world_size(), paces)) {
    const brain::NodeId node = table.locate(news.rank).node;
    const std::string host = core_.name_of(node);
    const std::string who = absl::StrFormat("rank %d on node %d (%s)", news.rank, node, host);
    const std::string times =
        absl::StrFormat("it computes %s a step, the others %s", time_text(news.computed), time_text(news.others));
    const std::string because = news.slow ? absl::StrFormat("%s is slow: %s; %.0f %% of each step of %s is lost to it",
                                                            who, times, news.share * 100, time_text(news.step))
                                          : absl::StrFormat("%s keeps up again: %s", who, times);
    core_.journal.write("straggler", identity, because,
                        {{"rank", int64_t{news.rank}},
                         {"slow_node", int64_t{node}},
                         {"host", host},
                         {"slow", news.slow},
                         {"computed_s", seconds_of(news.computed)},
                         {"others_s", seconds_of(news.others)},
                         {"step_s", seconds_of(news.step)},
                         {"share", news.share}});
    core_.pump.say("keepstep: " + because);
  }
}

nlohmann::json Pace::describe() const {
  nlohmann::json result = nlohmann::json::array();
  for (const auto& [rank, news] : detector_.named()) {
    result.push_back({{"rank", rank},
                      {"computed_s", seconds_of(news.computed)},
                      {"others_s", seconds_of(news.others)},
                      {"step_s", seconds_of(news.step)},
                      {"share", news.share}});
  }
  return result;
}

std::string Pace::in_words() const {
  if (detector_.named().empty()) {
    return "";
  }
  std::vector<std::string> ranks;
  double share = 0;
  for (const auto& [rank, news] : detector_.named()) {
    ranks.push_back(std::to_string(rank));
    share = std::max(share, news.share);
  }
  return absl::StrFormat("rank%s %s slow: %.0f %% of each step lost", ranks.size() == 1 ? "" : "s",
                         absl::StrJoin(ranks, ", "), share * 100);
}

}  // namespace keepstep::agent
