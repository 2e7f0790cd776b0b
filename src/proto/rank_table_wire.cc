#include "proto/rank_table_wire.h"

#include <bit>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"

namespace keepstep::proto {
namespace {

using brain::RankTable;
using brain::RankTableDelta;
using Entry = RankTable::Entry;

static_assert(std::endian::native == std::endian::little, "the structures below are the bytes on the wire");

constexpr uint8_t kVersion = 1;
enum Kind : uint8_t { kTable = 0, kDelta = 1 };

struct Header {
  uint8_t version = kVersion;
  uint8_t kind = kTable;
  uint16_t shapes = 0;
  uint32_t rows = 0;
  uint32_t term = 0;
  uint32_t generation = 0;
};
static_assert(sizeof(Header) == 16);

struct DeltaHeader {
  uint64_t result = 0;
  uint32_t base = 0;
  uint32_t splices = 0;
};
static_assert(sizeof(DeltaHeader) == 16);

// The properties that many entries share.
struct Shape {
  uint64_t network = 0;  // the upper half of the address
  uint32_t ranks = 0;
  uint16_t first_local = 0;
  uint16_t reserved = 0;
  auto operator<=>(const Shape&) const = default;
};
static_assert(sizeof(Shape) == 16);

struct [[gnu::packed]] Row {
  uint32_t node;
  uint64_t interface;  // the lower half of the address
  uint16_t port_base;
  uint16_t shape;
};
static_assert(sizeof(Row) == kRankTableEntryBytes);

struct SpliceHeader {
  uint32_t at;
  uint32_t removed;
  uint32_t inserted;
};
static_assert(sizeof(SpliceHeader) == 12);

using Checksum = uint64_t;

// Halves of an address are eight bytes in network order, unchanged.
uint64_t half(const brain::Address& address, size_t which) {
  uint64_t value;
  std::memcpy(&value, address.bytes.data() + 8 * which, 8);
  return value;
}

template <class Struct>
void put(std::string& bytes, const Struct& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The dictionary: shapes in order of first use.
class Shapes {
 public:
  Row row(const Entry& entry) {
    const Shape shape{half(entry.endpoint.address, 0), entry.ranks, entry.first_local, 0};
    if (shapes_.empty() || shapes_[newest_] != shape) {
      const auto [found, fresh] = index_.try_emplace(shape, static_cast<uint16_t>(shapes_.size()));
      if (fresh) {
        shapes_.push_back(shape);  // at most one per entry, so the index fits
      }
      newest_ = found->second;
    }
    return {entry.node, half(entry.endpoint.address, 1), entry.endpoint.port_base, newest_};
  }
  uint16_t count() const { return static_cast<uint16_t>(shapes_.size()); }
  void put_into(std::string& bytes) const {
    bytes.append(reinterpret_cast<const char*>(shapes_.data()), shapes_.size() * sizeof(Shape));
  }

 private:
  std::vector<Shape> shapes_;
  std::map<Shape, uint16_t> index_;
  uint16_t newest_ = 0;  // most rows have the shape of the previous row
};

std::string seal(std::string bytes) {
  put(bytes, Checksum{checksum(bytes.data(), bytes.size())});
  return bytes;
}

Status malformed(const std::string& what) { return absl::InvalidArgumentError("a malformed rank table: " + what); }

// Takes structures off the front; `ok()` becomes false if the bytes end too early.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  template <class Struct>
  Struct take() {
    Struct value{};
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    bytes_.copy(reinterpret_cast<char*>(&value), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  size_t left() const { return bytes_.size(); }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// Checks version, kind and checksum; sets `body` to the bytes between header and checksum.
StatusOr<Header> open(std::string_view bytes, Kind kind, std::string_view* body) {
  if (bytes.size() < sizeof(Header) + sizeof(Checksum)) {
    return malformed(absl::StrFormat("%d bytes are too few", bytes.size()));
  }
  const Header header = Decoder(bytes).take<Header>();
  if (header.version != kVersion) {
    return malformed(absl::StrFormat("it has format version %d, this is version %d; run the same keepstep everywhere",
                                     header.version, kVersion));
  }
  if (header.kind != kind) {
    return malformed(absl::StrFormat("kind %d instead of %d", header.kind, kind));
  }
  const std::string_view sealed = bytes.substr(0, bytes.size() - sizeof(Checksum));
  if (Decoder(bytes.substr(sealed.size())).take<Checksum>() != checksum(sealed.data(), sealed.size())) {
    return malformed("its checksum is wrong");
  }
  *body = sealed.substr(sizeof(Header));
  return header;
}

StatusOr<std::vector<Shape>> read_shapes(Decoder& reader, size_t count) {
  if (count * sizeof(Shape) > reader.left()) {
    return malformed(absl::StrFormat("it announces %d shapes and ends before them", count));
  }
  std::vector<Shape> shapes(count);
  for (Shape& shape : shapes) {
    shape = reader.take<Shape>();
    if (shape.reserved != 0) {
      return malformed("a reserved field is not 0");
    }
  }
  return shapes;
}

Status read_rows(Decoder& reader, size_t count, const std::vector<Shape>& shapes, std::vector<Entry>& entries) {
  if (count * sizeof(Row) > reader.left()) {
    return malformed(absl::StrFormat("it announces %d entries and ends before them", count));
  }
  entries.resize(count);
  for (Entry& entry : entries) {
    const Row row = reader.take<Row>();
    if (row.shape >= shapes.size()) {
      return malformed(absl::StrFormat("shape %d of %d", uint16_t{row.shape}, shapes.size()));
    }
    const Shape& shape = shapes[row.shape];
    entry.node = row.node;
    entry.ranks = shape.ranks;
    entry.first_local = shape.first_local;
    entry.endpoint.port_base = row.port_base;
    std::memcpy(entry.endpoint.address.bytes.data(), &shape.network, 8);
    std::memcpy(entry.endpoint.address.bytes.data() + 8, reinterpret_cast<const char*>(&row) + offsetof(Row, interface),
                8);
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t digest(const RankTable& table) {
  // No padding: the bytes in memory are exactly the contents.
  static_assert(sizeof(Entry) == 28 && std::has_unique_object_representations_v<Entry>);
  return checksum(table.entries().data(), table.entries().size() * sizeof(Entry));
}

std::string encode(brain::Identity identity, const RankTable& table) {
  Shapes shapes;
  std::vector<Row> rows;
  rows.reserve(table.entries().size());
  for (const Entry& entry : table.entries()) {
    rows.push_back(shapes.row(entry));
  }
  std::string bytes;
  bytes.reserve(sizeof(Header) + sizeof(Shape) * shapes.count() + sizeof(Row) * rows.size() + sizeof(Checksum));
  put(bytes,
      Header{kVersion, kTable, shapes.count(), static_cast<uint32_t>(rows.size()), identity.term, identity.generation});
  shapes.put_into(bytes);
  bytes.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(Row));
  return seal(std::move(bytes));
}

StatusOr<IdentifiedTable> decode_table(std::string_view bytes) {
  std::string_view body;
  KEEPSTEP_ASSIGN_OR_RETURN(const Header header, open(bytes, kTable, &body));
  Decoder reader(body);
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, read_shapes(reader, header.shapes));
  std::vector<Entry> entries;
  KEEPSTEP_RETURN_IF_ERROR(read_rows(reader, header.rows, shapes, entries));
  if (reader.left() != 0) {
    return malformed(absl::StrFormat("%d bytes too many", reader.left()));
  }
  std::string why;
  auto table = RankTable::make(std::move(entries), &why);
  if (!table.has_value()) {
    return malformed(why);
  }
  return IdentifiedTable{{header.term, header.generation}, *std::move(table)};
}

std::string encode(const IdentifiedDelta& delta) {
  Shapes shapes;
  std::string body;
  uint32_t rows = 0;
  for (const RankTableDelta::Splice& splice : delta.delta.splices) {
    put(body, SpliceHeader{splice.at, splice.removed, static_cast<uint32_t>(splice.inserted.size())});
    for (const Entry& entry : splice.inserted) {
      put(body, shapes.row(entry));
      ++rows;
    }
  }
  KEEPSTEP_CHECK(rows <= brain::kMaxTableEntries, "a difference inserts more entries than a table can have");
  std::string bytes;
  put(bytes, Header{kVersion, kDelta, shapes.count(), rows, delta.identity.term, delta.identity.generation});
  put(bytes, DeltaHeader{delta.result, delta.base, static_cast<uint32_t>(delta.delta.splices.size())});
  shapes.put_into(bytes);
  return seal(bytes + body);
}

StatusOr<IdentifiedDelta> decode_delta(std::string_view bytes) {
  std::string_view body;
  KEEPSTEP_ASSIGN_OR_RETURN(const Header header, open(bytes, kDelta, &body));
  Decoder reader(body);
  const auto more = reader.take<DeltaHeader>();
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, read_shapes(reader, header.shapes));
  if (uint64_t{more.splices} * sizeof(SpliceHeader) + uint64_t{header.rows} * sizeof(Row) != reader.left()) {
    return malformed(
        absl::StrFormat("%d splices of %d entries do not take %d bytes", more.splices, header.rows, reader.left()));
  }
  IdentifiedDelta delta{{header.term, header.generation}, more.base, more.result, {}};
  delta.delta.splices.resize(more.splices);
  for (RankTableDelta::Splice& splice : delta.delta.splices) {
    const auto head = reader.take<SpliceHeader>();
    splice.at = head.at;
    splice.removed = head.removed;
    KEEPSTEP_RETURN_IF_ERROR(read_rows(reader, head.inserted, shapes, splice.inserted));
  }
  if (!reader.ok() || reader.left() != 0) {
    return malformed("its splices do not take the bytes it announced");
  }
  return delta;
}

}  // namespace keepstep::proto
