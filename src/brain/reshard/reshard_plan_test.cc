// Plans between random shardings, carried out on real bytes and compared with an element-by-element gather.
#include "brain/reshard/reshard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "brain/reshard/strided_copy.h"

namespace keepstep::brain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  uint32_t element_bytes = 4;
  Bytes bytes;

  ShardEntry entry(Box box) const {
    return {name, "type" + std::to_string(element_bytes), element_bytes, shape, std::move(box)};
  }
};

// The bytes of a box, one element at a time: the reference for the plan knows nothing of strides.
Bytes gather(const Tensor& tensor, const Box& box) {
  Bytes gathered;
  for (uint64_t index = 0; index < elements(box); ++index) {
    uint64_t rest = index;
    uint64_t at = 0;
    uint64_t scale = 1;
    for (size_t dimension = box.dimensions(); dimension-- > 0;) {
      at += (box.offsets[dimension] + rest % box.lengths[dimension]) * scale;
      rest /= box.lengths[dimension];
      scale *= tensor.shape[dimension];
    }
    const auto from = tensor.bytes.begin() + static_cast<long>(at * tensor.element_bytes);
    gathered.insert(gathered.end(), from, from + tensor.element_bytes);
  }
  return gathered;
}

// What pulling leaves in the memory of each need; every byte must have been written exactly once.
std::vector<Bytes> carry_out(const std::vector<Pull>& plan, const std::vector<ShardEntry>& needs,
                             const std::vector<ShardSource>& sources, const std::map<std::string, Tensor>& tensors) {
  std::vector<Bytes> memory;
  std::vector<std::vector<int>> written;
  for (const ShardEntry& need : needs) {
    memory.emplace_back(elements(need.box) * need.element_bytes);
    written.emplace_back(memory.back().size(), 0);
  }
  std::map<std::pair<uint32_t, uint32_t>, Bytes> held;
  for (const Pull& pull : plan) {
    const ShardEntry& entry = sources.at(pull.source).entries.at(pull.entry);
    Bytes& source = held[{pull.source, pull.entry}];
    if (source.empty()) {
      source = gather(tensors.at(entry.name), entry.box);
    }
    const StridedCopy copy = strided_copy(entry.box, needs.at(pull.need).box, pull.box, entry.element_bytes);
    EXPECT_EQ(copy.bytes(), elements(pull.box) * entry.element_bytes);
    uint64_t last = 0;
    each_run(copy, [&](uint64_t from, uint64_t to, uint64_t bytes) {
      EXPECT_GE(from, last) << "a source reads in order";
      last = from + bytes;
      ASSERT_LE(from + bytes, source.size());
      ASSERT_LE(to + bytes, memory[pull.need].size());
      std::memcpy(memory[pull.need].data() + to, source.data() + from, bytes);
      for (uint64_t byte = to; byte < to + bytes; ++byte) {
        ++written[pull.need][byte];
      }
    });
    EXPECT_EQ(copy.source_span(), last - copy.source_offset);
  }
  for (const std::vector<int>& counts : written) {
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), static_cast<long>(counts.size()));
  }
  return memory;
}

// Cuts [0, length) into `parts`, some of them empty; or into even ones, as torch.chunk does.
std::vector<uint64_t> borders(uint64_t length, uint64_t parts, bool even, std::mt19937_64& random) {
  std::vector<uint64_t> cuts = {0};
  const uint64_t chunk = (length + parts - 1) / parts;
  for (uint64_t part = 1; part < parts; ++part) {
    cuts.push_back(even ? std::min(length, part * chunk) : random() % (length + 1));
  }
  cuts.push_back(length);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// The boxes of `ranks` ranks: shards of one or two dimensions, replicas of them, or everything everywhere.
std::vector<Box> random_sharding(const std::vector<uint64_t>& shape, uint64_t ranks, std::mt19937_64& random) {
  const bool even = random() % 2 == 0;
  std::vector<uint64_t> divisors;
  for (uint64_t divisor = 1; divisor <= ranks; ++divisor) {
    if (ranks % divisor == 0) {
      divisors.push_back(divisor);
    }
  }
  const uint64_t rows = shape.empty() ? 1 : divisors[random() % divisors.size()];
  const uint64_t columns = ranks / rows;
  const size_t first = shape.empty() ? 0 : random() % shape.size();
  const size_t second = shape.empty() ? 0 : random() % shape.size();
  const std::vector<uint64_t> row_cuts =
      shape.empty() ? std::vector<uint64_t>{} : borders(shape[first], rows, even, random);
  const bool replicate = shape.empty() || second == first || random() % 3 == 0;
  const std::vector<uint64_t> column_cuts =
      replicate ? std::vector<uint64_t>{} : borders(shape[second], columns, even, random);
  std::vector<Box> boxes;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    Box box = whole(shape);
    const auto cut = [&](size_t dimension, const std::vector<uint64_t>& cuts, uint64_t part) {
      box.offsets[dimension] = cuts[part];
      box.lengths[dimension] = cuts[part + 1] - cuts[part];
    };
    if (!shape.empty()) {
      cut(first, row_cuts, rank / columns);
    }
    if (!replicate) {
      cut(second, column_cuts, rank % columns);
    }
    boxes.push_back(box);
  }
  return boxes;
}

std::map<std::string, Tensor> random_tensors(std::mt19937_64& random) {
  std::map<std::string, Tensor> tensors;
  for (uint64_t number = 1 + random() % 4; number > 0; --number) {
    Tensor tensor{"t" + std::to_string(number), {}, static_cast<uint32_t>(1U << random() % 4), {}};
    for (uint64_t dimensions = random() % 4; dimensions > 0; --dimensions) {
      tensor.shape.push_back(random() % 20 == 0 ? 0 : 1 + random() % (dimensions == 1 ? 40 : 12));
    }
    tensor.bytes.resize(*elements(tensor.shape) * tensor.element_bytes);
    for (uint8_t& byte : tensor.bytes) {
      byte = static_cast<uint8_t>(random());
    }
    tensors[tensor.name] = tensor;
  }
  return tensors;
}

// Cuts a tensor of ours for each of `ranks`.
std::vector<std::vector<ShardEntry>> shard(const std::map<std::string, Tensor>& tensors, uint64_t ranks,
                                           std::mt19937_64& random) {
  std::vector<std::vector<ShardEntry>> shards(ranks);
  for (const auto& [name, tensor] : tensors) {
    const std::vector<Box> boxes = random_sharding(tensor.shape, ranks, random);
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      shards[rank].push_back(tensor.entry(boxes[rank]));
    }
  }
  return shards;
}

TEST(ReshardPlan, whatever_the_shardings_of_n_and_m_ranks_every_byte_comes_once_and_is_the_right_one) {
  std::mt19937_64 random(11);
  uint64_t pulls = 0;
  uint64_t needed = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 11");
    const std::map<std::string, Tensor> tensors = random_tensors(random);
    std::vector<ShardSource> sources;
    for (std::vector<ShardEntry>& entries : shard(tensors, 1 + random() % 8, random)) {
      sources.push_back({static_cast<uint32_t>(random() % 3), 7, std::move(entries)});
    }
    if (random() % 3 == 0) {  // an additional checkpoint, cut differently, and a source with another version
      for (std::vector<ShardEntry>& entries : shard(tensors, 1 + random() % 8, random)) {
        sources.push_back({3, 7, std::move(entries)});
      }
      sources.push_back({0, 6, sources[0].entries});
    }
    ReshardOptions options{.version = 7};
    options.least_stripe_bytes = 1 + random() % 200;
    options.first_source = static_cast<uint32_t>(random() % 10);
    for (const std::vector<ShardEntry>& needs : shard(tensors, 1 + random() % 8, random)) {
      std::string why;
      const auto plan = plan_reshard(needs, sources, options, &why);
      ASSERT_TRUE(plan.has_value()) << why;
      const std::vector<Bytes> memory = carry_out(*plan, needs, sources, tensors);
      for (size_t need = 0; need < needs.size(); ++need) {
        ASSERT_EQ(memory[need], gather(tensors.at(needs[need].name), needs[need].box));
        needed += needs[need].box.lengths.empty() ? 1 : elements(needs[need].box);
      }
      pulls += plan->size();
      for (const Pull& pull : *plan) {  // no nearer source has any of it
        EXPECT_EQ(sources[pull.source].version, 7u);
        for (const ShardSource& other : sources) {
          for (const ShardEntry& entry : other.entries) {
            if (other.version == 7 && other.distance < sources[pull.source].distance &&
                entry.name == needs[pull.need].name) {
              EXPECT_FALSE(overlap(entry.box, pull.box));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(pulls, 50000u);
  EXPECT_GT(needed, 1000000u);
}

TEST(ReshardPlan, of_random_holdings_with_holes_it_plans_exactly_those_that_cover_everything) {
  std::mt19937_64 random(12);
  int whole_ones = 0;
  int with_holes = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 12");
    Tensor tensor{"t", {1 + random() % 9, 1 + random() % 9}, 2, {}};
    tensor.bytes.assign(*elements(tensor.shape) * 2, 9);
    const auto random_box = [&] {
      Box box = whole(tensor.shape);
      for (size_t dimension = 0; dimension < 2; ++dimension) {
        box.offsets[dimension] = random() % tensor.shape[dimension];
        box.lengths[dimension] = 1 + random() % (tensor.shape[dimension] - box.offsets[dimension]);
      }
      return box;
    };
    std::vector<ShardSource> sources(1 + random() % 6);
    for (ShardSource& source : sources) {
      source.distance = static_cast<uint32_t>(random() % 2);
      for (uint64_t count = random() % 4; count > 0; --count) {
        source.entries.push_back(tensor.entry(random_box()));
      }
    }
    const std::vector<ShardEntry> needs = {tensor.entry(random_box())};
    bool covered = true;
    for (const Box& element : row_major_part(needs[0].box, 0, elements(needs[0].box))) {
      for (uint64_t at = 0; at < elements(element); ++at) {
        const std::vector<Box> one = row_major_part(element, at, at + 1);
        ASSERT_EQ(one.size(), 1u);
        covered &= std::any_of(sources.begin(), sources.end(), [&](const ShardSource& source) {
          return std::any_of(source.entries.begin(), source.entries.end(),
                             [&](const ShardEntry& entry) { return contains(entry.box, one[0]); });
        });
      }
    }
    std::string why;
    const auto plan = plan_reshard(needs, sources, {}, &why);
    ASSERT_EQ(plan.has_value(), covered) << why;
    EXPECT_EQ(newest_whole_version(needs, sources).has_value(), covered);
    if (covered) {
      ++whole_ones;
      carry_out(*plan, needs, sources, {{"t", tensor}});
    } else {
      ++with_holes;
      EXPECT_THAT(why, HasSubstr("nobody has ["));
    }
  }
  EXPECT_GT(whole_ones, 300);
  EXPECT_GT(with_holes, 300);
}

Tensor weight() { return {"w", {1024, 512}, 4, {}}; }

std::vector<uint64_t> shares(const std::vector<Pull>& plan, const std::vector<ShardEntry>& needs, size_t sources) {
  std::vector<uint64_t> bytes(sources, 0);
  for (const Pull& pull : plan) {
    bytes.at(pull.source) += elements(pull.box) * needs[pull.need].element_bytes;
  }
  return bytes;
}

uint64_t spread(const std::vector<uint64_t>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *most - *least;
}

TEST(ReshardPlan, equally_near_sources_give_even_shares_each_in_one_piece) {
  const std::vector<ShardEntry> needs = {weight().entry(whole({1024, 512}))};
  const std::vector<ShardSource> sources(4, ShardSource{0, 0, needs});
  const auto plan = plan_reshard(needs, sources, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(*plan, ElementsAre(Pull{0, 0, 0, {{0, 0}, {256, 512}}}, Pull{0, 1, 0, {{256, 0}, {256, 512}}},
                                 Pull{0, 2, 0, {{512, 0}, {256, 512}}}, Pull{0, 3, 0, {{768, 0}, {256, 512}}}));
}

TEST(ReshardPlan, random_replicas_give_even_shares_to_within_three_stripes) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 13");
    std::vector<ShardEntry> needs;
    for (uint64_t count = 1 + random() % 30; count > 0; --count) {
      const std::vector<uint64_t> shape = {1 + random() % 300, 1 + random() % 2000};
      needs.push_back({"t" + std::to_string(count), "f", 4, shape, whole(shape)});
    }
    const std::vector<ShardSource> sources(1 + random() % 9, ShardSource{0, 0, needs});
    ReshardOptions options;
    options.least_stripe_bytes = 1 + random() % 100000;
    options.first_source = static_cast<uint32_t>(random() % 20);
    const auto plan = plan_reshard(needs, sources, options);
    ASSERT_TRUE(plan.has_value());
    EXPECT_LE(spread(shares(*plan, needs, sources.size())), 3 * options.least_stripe_bytes + 4);
  }
}

TEST(ReshardPlan, who_has_what_others_do_not_is_asked_for_less_of_the_rest) {
  // Only source 0 has the upper half, so the other two give the lower one.
  const std::vector<ShardEntry> needs = {weight().entry(whole({1024, 512}))};
  const ShardEntry lower = weight().entry({{512, 0}, {512, 512}});
  const auto plan = plan_reshard(needs, {{0, 0, needs}, {0, 0, {lower}}, {0, 0, {lower}}}, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(shares(*plan, needs, 3), ElementsAre(1 << 20, 512 << 10, 512 << 10));
}

TEST(ReshardPlan, small_tensors_are_not_cut_and_different_targets_begin_at_different_sources) {
  const ShardEntry bias{"b", "float32", 4, {512}, whole({512})};
  const std::vector<ShardSource> sources(4, ShardSource{0, 0, {bias}});
  for (uint32_t first = 0; first < 8; ++first) {
    const auto plan = plan_reshard({bias}, sources, {.first_source = first});
    ASSERT_TRUE(plan.has_value());
    EXPECT_THAT(*plan, ElementsAre(Pull{0, first % 4, 0, whole({512})}));
  }
}

TEST(ReshardPlan, pieces_that_follow_one_another_in_one_source_are_one_pull) {
  // The near source's shard ends inside the far one's; the far one gives the rest of the box in one piece.
  const std::vector<ShardEntry> needs = {weight().entry({{100, 0}, {800, 512}})};
  const auto plan =
      plan_reshard(needs,
                   {{0, 0, {weight().entry({{300, 0}, {100, 512}}), weight().entry({{500, 0}, {9, 512}})}},
                    {1, 0, {weight().entry(whole({1024, 512}))}}},
                   {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(*plan, ElementsAre(Pull{0, 0, 0, {{300, 0}, {100, 512}}}, Pull{0, 0, 1, {{500, 0}, {9, 512}}},
                                 Pull{0, 1, 0, {{100, 0}, {200, 512}}}, Pull{0, 1, 0, {{400, 0}, {100, 512}}},
                                 Pull{0, 1, 0, {{509, 0}, {391, 512}}}));
}

TEST(StridedCopies, have_the_longest_runs_and_the_fewest_loops_there_are) {
  const Box all = whole({8, 6, 4});
  EXPECT_EQ(strided_copy(all, all, all, 4), (StridedCopy{0, 0, 8 * 6 * 4 * 4, {}})) << "one run";
  EXPECT_EQ(strided_copy(all, {{2, 0, 0}, {3, 6, 4}}, {{2, 0, 0}, {3, 6, 4}}, 4), (StridedCopy{2 * 96, 0, 3 * 96, {}}))
      << "rows of the first dimension follow one another on both sides";
  EXPECT_EQ(strided_copy(all, {{0, 2, 0}, {8, 3, 4}}, {{0, 2, 0}, {8, 3, 4}}, 4),
            (StridedCopy{32, 0, 48, {{8, 96, 48}}}));
  EXPECT_EQ(strided_copy(all, all, {{0, 0, 1}, {8, 6, 2}}, 4), (StridedCopy{4, 4, 8, {{48, 16, 16}}}))
      << "two dimensions that step alike are one loop";
  EXPECT_EQ(strided_copy(all, all, {{1, 2, 1}, {4, 3, 2}}, 1),
            (StridedCopy{24 + 8 + 1, 24 + 8 + 1, 2, {{4, 24, 24}, {3, 4, 4}}}));
  EXPECT_EQ(strided_copy(whole({}), whole({}), whole({}), 8), (StridedCopy{0, 0, 8, {}})) << "a scalar";
  EXPECT_EQ(strided_copy(all, all, {{0, 0, 0}, {8, 0, 4}}, 4).runs(), 0u);
}

TEST(ReshardPlan, names_what_nobody_has) {
  const std::vector<ShardEntry> needs = {weight().entry(whole({1024, 512})), {"b", "float32", 4, {512}, whole({512})}};
  std::string why;
  EXPECT_FALSE(plan_reshard(needs,
                            {{0, 118, {weight().entry({{0, 0}, {256, 512}})}},
                             {0, 118, {weight().entry({{512, 0}, {512, 512}})}},
                             {0, 117, needs}},
                            {.version = 118}, &why)
                   .has_value());
  EXPECT_EQ(why,
            "version 118 is not whole: nobody has [256:512, 0:512] of 'w' type4 [1024, 512], [0:512] of 'b' "
            "float32 [512]");
  EXPECT_FALSE(plan_reshard(needs, {{0, 117, needs}, {0, 117, {}}, {1, 100, needs}}, {.version = 118}, &why));
  EXPECT_EQ(why, "no source has version 118: there are versions 117 (2 sources), 100 (1 source)");
  EXPECT_FALSE(plan_reshard(needs, {}, {.version = 118}, &why));
  EXPECT_EQ(why, "no source has version 118: there is no source");
  EXPECT_EQ(plan_reshard({}, {}, {.version = 118}), std::vector<Pull>()) << "nothing is needed";
}

TEST(ReshardPlan, says_all_that_differs_of_another_models_checkpoint_up_to_a_limit) {
  std::vector<ShardEntry> needs;
  ShardSource source;
  for (int layer = 0; layer < 20; ++layer) {
    needs.push_back({"l" + std::to_string(layer), "float32", 4, {512, 64}, whole({512, 64})});
    source.entries.push_back({"l" + std::to_string(layer), "float32", 4, {512, 128}, whole({512, 128})});
  }
  std::string why;
  EXPECT_FALSE(plan_reshard(needs, {source}, {}, &why).has_value());
  EXPECT_THAT(why, HasSubstr("'l0' is needed as float32 [512, 64], source 0 has float32 [512, 128]; 'l1' "));
  EXPECT_THAT(why, HasSubstr("(and 12 more)"));
  source.entries = {{"l0", "bfloat16", 2, {512, 64}, whole({512, 64})}};
  EXPECT_FALSE(plan_reshard({needs[0]}, {source}, {}, &why).has_value());
  EXPECT_EQ(why, "'l0' is needed as float32 [512, 64], source 0 has bfloat16 [512, 64]");
}

TEST(ReshardPlan, refuses_entries_that_are_no_part_of_their_tensor_whatever_their_numbers) {
  const std::vector<ShardEntry> good = {weight().entry(whole({1024, 512}))};
  constexpr uint64_t kMax = ~uint64_t{0};
  const std::vector<ShardEntry> bad_ones = {
      weight().entry({{0}, {512}}),
      weight().entry({{1000, 0}, {25, 512}}),
      weight().entry({{kMax, 0}, {2, 512}}),
      weight().entry({{1, 0}, {kMax, 512}}),
      {"w", "type4", 4, {kMax, kMax}, whole({kMax, kMax})},
      {"w", "type4", 4, {uint64_t{1} << 61}, whole({uint64_t{1} << 61})},
      {"w", "type4", 0, {4}, whole({4})},
  };
  for (const ShardEntry& bad : bad_ones) {
    std::string why;
    EXPECT_FALSE(plan_reshard({bad}, {{0, 0, good}}, {}, &why).has_value());
    EXPECT_FALSE(why.empty());
    why.clear();
    EXPECT_FALSE(plan_reshard(good, {{0, 0, good}, {0, 0, {bad}}}, {}, &why).has_value());
    EXPECT_FALSE(why.empty());
  }
  std::string why;
  EXPECT_FALSE(plan_reshard({good[0], weight().entry({{5, 5}, {1, 1}})}, {{0, 0, good}}, {}, &why).has_value());
  EXPECT_EQ(why, "needed twice: [0:1024, 0:512] and [5:6, 5:6] of 'w' type4 [1024, 512]");
}

TEST(ReshardPlan, the_newest_version_is_taken_that_is_whole) {
  const std::vector<ShardEntry> needs = {weight().entry(whole({1024, 512}))};
  const ShardEntry upper = weight().entry({{0, 0}, {512, 512}});
  const ShardEntry lower = weight().entry({{512, 0}, {512, 512}});
  std::string why;
  EXPECT_EQ(newest_whole_version(needs, {{0, 119, {upper}}, {0, 118, {upper}}, {0, 118, {lower}}, {3, 100, needs}}),
            118u);
  EXPECT_EQ(newest_whole_version(needs, {{0, 119, {upper}}, {0, 118, {lower}}, {3, 100, needs}}), 100u);
  EXPECT_EQ(newest_whole_version(needs, {{0, 119, {upper}}, {0, 118, {lower}}}, &why), std::nullopt);
  EXPECT_EQ(why,
            "version 119 is not whole: nobody has [512:1024, 0:512] of 'w' type4 [1024, 512]; "
            "version 118 is not whole: nobody has [0:512, 0:512] of 'w' type4 [1024, 512]");
  EXPECT_EQ(newest_whole_version(needs, {}, &why), std::nullopt);
  EXPECT_EQ(why, "there is no source");
}

TEST(Resharding, what_a_lost_source_owed_comes_from_the_others_and_their_shares_stay_even) {
  const std::vector<ShardEntry> needs = {weight().entry(whole({1024, 512}))};
  const std::vector<ShardSource> sources(4, ShardSource{0, 0, needs});
  const auto plan = plan_reshard(needs, sources, {});
  ASSERT_TRUE(plan.has_value());
  std::vector<Pull> kept = *plan;
  const auto lost = std::stable_partition(kept.begin(), kept.end(), [](const Pull& pull) { return pull.source != 2; });
  const std::vector<Pull> owed(lost, kept.end());
  kept.erase(lost, kept.end());
  const ReshardOptions options{.least_stripe_bytes = 1024};
  const auto again = replan_reshard(owed, {2}, shares(kept, needs, 4), needs, sources, options);
  ASSERT_TRUE(again.has_value());
  kept.insert(kept.end(), again->begin(), again->end());
  const std::vector<uint64_t> now = shares(kept, needs, 4);
  EXPECT_EQ(now[2], 0u);
  EXPECT_EQ(now[0] + now[1] + now[3], 1024 * 512 * 4u);
  EXPECT_LE(spread({now[0], now[1], now[3]}), 3 * options.least_stripe_bytes);
  std::string why;
  EXPECT_FALSE(replan_reshard(owed, {0, 1, 2, 3}, {}, needs, sources, options, &why).has_value());
  EXPECT_EQ(why, "no source of version 0 is left");
}

TEST(ReshardPlan, one_of_768_ranks_plans_in_no_time_what_a_thousand_have) {
  std::vector<ShardSource> sources(1024, ShardSource{2, 5, {}});
  std::vector<ShardEntry> needs;
  for (int tensor = 0; tensor < 100; ++tensor) {
    const std::vector<uint64_t> shape = {50000 + 7 * static_cast<uint64_t>(tensor), 256};
    const std::string name = "layers." + std::to_string(tensor) + ".weight";
    const uint64_t chunk = (shape[0] + 1023) / 1024;
    for (uint64_t rank = 0; rank * chunk < shape[0]; ++rank) {
      sources[rank].entries.push_back(
          {name, "float32", 4, shape, {{rank * chunk, 0}, {std::min(chunk, shape[0] - rank * chunk), 256}}});
    }
    needs.push_back({name, "float32", 4, shape, {{shape[0] / 768 * 500, 0}, {shape[0] / 768, 256}}});
  }
  needs.push_back({"layers.0.weight", "float32", 4, {50000, 256}, {{0, 0}, {20000, 256}}});  // and most of one more
  const auto plan = plan_reshard(needs, sources, {.version = 5});
  ASSERT_TRUE(plan.has_value());
  const std::vector<uint64_t> bytes = shares(*plan, needs, sources.size());
  uint64_t wanted = 0;
  for (const ShardEntry& need : needs) {
    wanted += elements(need.box) * need.element_bytes;
  }
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), wanted);
}

}  // namespace
}  // namespace keepstep::brain
