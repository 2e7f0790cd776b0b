// testdata/*.txt: one transcript for each rule of the elastic policy. A policy starts with
//   policy min= max= [step=] [values=2,4,8] [scaling_s=] [faulty_s=] [snooze_s=] [between_s=] [factor=] [max_s=]
// and continues with
//   view replicas= ready= ...   changes to the view; prints the policy's decision
//   later by_s=                 asks four times a second; prints each new decision
//   formed                      the newest decision to change was carried out: its members now run
//   scale to=N|auto, configure  the user; prints why the policy refuses
//   considered                  what went into the newest decision

#include <gtest/gtest.h>

#include <memory>
#include <type_traits>

#include "brain/elastic/elastic_policy.h"
#include "brain/text.h"
#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using Kind = ElasticDecision::Kind;

class Player {
 public:
  std::vector<std::string> run(const Line& line) {
    out_.clear();
    if (line.verb == "policy") {
      *this = Player();
      config_ = changed(line);
      if (std::vector<std::string> found = mistakes(config_); !found.empty()) {
        return found;
      }
      policy_ = std::make_unique<ElasticPolicy>(config_);
    } else if (line.verb == "configure") {
      const ElasticConfig config = changed(line);
      if (std::vector<std::string> found = policy_->configure(config); !found.empty()) {
        return found;
      }
      config_ = config;
      ask(true);
    } else if (line.verb == "view") {
      look(line);
      ask(true);
    } else if (line.verb == "later") {
      const Time until = now_ + seconds(line.text("by_s"));
      while (now_ < until) {
        now_ = std::min(until, now_ + std::chrono::milliseconds(250));
        ask(false);
      }
    } else if (line.verb == "formed") {
      policy_->on_changed(view_.replicas, change_.replicas, change_.forced, now_);
      view_.replicas = change_.replicas;
      view_.missing = view_.leaving = 0;
      view_.leave_by.reset();
      ask(true);
    } else if (line.verb == "scale") {
      const std::string to = line.text("to");
      const std::string mistake =
          policy_->scale_to(to == "auto" ? std::nullopt : std::optional(static_cast<uint32_t>(std::stoul(to))));
      if (!mistake.empty()) {
        return {mistake};
      }
      ask(true);
    } else if (line.verb == "considered") {
      for (const auto& [key, value] : newest_.considered) {
        out_.push_back(key + "=" + std::visit([](const auto& field) { return written(field); }, value));
      }
    } else {
      out_.push_back("no such line");
    }
    return out_;
  }

 private:
  static std::string written(const std::string& field) { return field; }
  static std::string written(const std::vector<int64_t>& field) { return std::to_string(field.size()) + " values"; }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  static std::string written(Number field) {
    std::ostringstream text;
    text << field;
    return text.str();
  }

  static Time seconds(const std::string& text) {
    return std::chrono::duration_cast<Time>(std::chrono::duration<double>(std::stod(text)));
  }

  ElasticConfig changed(const Line& line) const {
    ElasticConfig config = config_;
    const auto number = [&](const char* key, uint32_t& value) {
      value = static_cast<uint32_t>(line.number(key, value));
    };
    const auto time = [&](const char* key, Time& value) { value = line.has(key) ? seconds(line.text(key)) : value; };
    number("min", config.min_replicas);
    number("max", config.max_replicas);
    number("step", config.increment_step);
    if (line.has("values")) {
      config.discrete_values = transcript::numbers(line.text("values"));
    }
    time("scaling_s", config.scaling_timeout);
    time("graceful_s", config.graceful_shutdown_timeout);
    time("faulty_s", config.faulty_scale_down_timeout);
    time("snooze_s", config.scale_up_snooze);
    time("between_s", config.min_between_changes);
    time("max_s", config.max_backoff);
    if (line.has("factor")) {
      config.backoff_factor = std::stod(line.text("factor"));
    }
    return config;
  }

  void look(const Line& line) {
    const auto number = [&](const char* key, uint32_t& value) {
      value = static_cast<uint32_t>(line.number(key, value));
    };
    number("replicas", view_.replicas);
    number("ready", view_.ready);
    number("coming", view_.coming);
    number("missing", view_.missing);
    number("leaving", view_.leaving);
    number("useful", view_.useful);
    if (line.has("leave_in_s")) {
      view_.leave_by = now_ + seconds(line.text("leave_in_s"));
    }
  }

  void ask(bool always) {
    newest_ = policy_->step(view_, now_);
    std::string text = name(newest_.kind);
    if (newest_.kind == Kind::kStay) {
      EXPECT_EQ(newest_.replicas, view_.replicas);
      EXPECT_FALSE(newest_.forced);
    } else {
      change_ = newest_;
      text += (newest_.kind == Kind::kSwap ? "" : " to " + std::to_string(newest_.replicas)) +
              (newest_.forced ? ", forced" : "");
    }
    text += newest_.because.empty() ? "" : ": " + newest_.because;
    if (always || text != said_) {
      out_.push_back((always ? "" : "at " + seconds_text(now_) + " ") + text);
    }
    said_ = text;
  }

  std::unique_ptr<ElasticPolicy> policy_;
  // Times that distinguish the rules from each other; the defaults are shorter.
  ElasticConfig config_{.scaling_timeout = std::chrono::seconds(30),
                        .faulty_scale_down_timeout = std::chrono::seconds(30),
                        .scale_up_snooze = std::chrono::seconds(120),
                        .min_between_changes = std::chrono::seconds(60)};
  ElasticView view_;
  Time now_{};
  ElasticDecision newest_;
  ElasticDecision change_;
  std::string said_;
  std::vector<std::string> out_;
};

TEST(ElasticTranscripts, all_read_as_recorded) {
  const std::vector<std::string> names = transcript::below("elastic/testdata");
  EXPECT_GE(names.size(), 13U);
  for (const std::string& name : names) {
    Player player;
    EXPECT_EQ(transcript::check(name, [&](const Line& line) { return player.run(line); }), "");
  }
}

}  // namespace
}  // namespace keepstep::brain
