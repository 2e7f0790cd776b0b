#include "checkpoint/dcp/metadata.h"

#include <array>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "checkpoint/dcp/pickle.h"

namespace keepstep::checkpoint::dcp {
namespace {

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata ";
constexpr std::string_view kOldMetadata = "torch.distributed._shard.sharded_tensor.metadata ";  // until torch 2.2

// "module name" of everything that torch's own writers put into a .metadata.
const std::set<std::string, std::less<>>& known_names() {
  static const std::set<std::string, std::less<>> names = {
      std::string(kMetadata) + "Metadata",
      std::string(kMetadata) + "TensorStorageMetadata",
      std::string(kMetadata) + "BytesStorageMetadata",
      std::string(kMetadata) + "ChunkStorageMetadata",
      std::string(kMetadata) + "MetadataIndex",
      std::string(kMetadata) + "TensorProperties",
      std::string(kMetadata) + "_MEM_FORMAT_ENCODING",
      std::string(kMetadata) + "StorageMeta",
      std::string(kOldMetadata) + "TensorProperties",
      std::string(kOldMetadata) + "MEM_FORMAT_ENCODING",
      "torch.distributed.checkpoint.filesystem _StorageInfo",
      "torch Size",
      "torch.serialization _get_layout",
      "collections OrderedDict",
      "pathlib PosixPath",
      "pathlib PurePosixPath",
      "pathlib WindowsPath",
      "pathlib PureWindowsPath",
      "pathlib._local PosixPath",
      "pathlib._local WindowsPath",
  };
  return names;
}

bool is_known(std::string_view module, std::string_view name) {
  return (module == "torch" && dtype_bytes(name) > 0) || known_names().contains(absl::StrFormat("%s %s", module, name));
}

// Walks the tree and checks every type on the way. Error messages name the field.
class Converter {
 public:
  Converter(const PickleTree& tree, size_t bytes) : tree_(tree), bytes_(bytes) {}

  StatusOr<Layout> convert() {
    KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* metadata, object(tree_.root_index, "Metadata", "the whole"));
    KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* entries, dict(*metadata, "state_dict_metadata"));
    KEEPSTEP_RETURN_IF_ERROR(read_storage(*metadata));
    for (size_t i = 0; i + 1 < entries->items.size(); i += 2) {
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string_view name, text(entries->items[i], "a name"));
      KEEPSTEP_RETURN_IF_ERROR(spend(name.size()));
      KEEPSTEP_RETURN_IF_ERROR(read_entry(std::string(name), entries->items[i + 1]));
    }
    KEEPSTEP_RETURN_IF_ERROR(read_paths(*metadata));
    return std::move(layout_);
  }

 private:
  static constexpr uint64_t kMaxCopied = 64;
  static constexpr size_t kMaxFields = 64;  // in a dataclass

  static Status bad(std::string_view what) {
    return absl::InvalidArgumentError(absl::StrFormat("it is not what DCP writes: %s", what));
  }

  StatusOr<const PickleValue*> object(uint32_t index, std::string_view type, std::string_view what) const {
    const PickleValue& value = tree_.at(index);
    if (value.kind != PickleKind::kObject || !tree_.at(value.callee).text.ends_with(absl::StrFormat(" %s", type))) {
      return bad(absl::StrFormat("%s is no %s", what, type));
    }
    return &value;
  }

  // In a hostile file, many values may share one text: all texts copied and compared together must not be much larger
  // than the file itself. For files that DCP writes it is less than ten times the size.
  Status spend(size_t bytes) {
    copied_ += bytes + 64;
    return copied_ > kMaxCopied * (bytes_ + 1024) ? bad("its texts are shared too often") : absl::OkStatus();
  }

  // A field of a dataclass; PickleTree::kNothing if there is none.
  uint32_t field(const PickleValue& object, std::string_view name) const {
    if (object.state == PickleTree::kNothing || tree_.at(object.state).kind != PickleKind::kDict) {
      return PickleTree::kNothing;
    }
    const PickleValue& fields = tree_.at(object.state);
    if (fields.items.size() > 2 * kMaxFields) {
      return PickleTree::kNothing;
    }
    for (size_t i = 0; i + 1 < fields.items.size(); i += 2) {
      const PickleValue& key = tree_.at(fields.items[i]);
      if (key.kind == PickleKind::kText && key.text == name) {
        return fields.items[i + 1];
      }
    }
    return PickleTree::kNothing;
  }

  bool is_none(uint32_t index) const {
    return index == PickleTree::kNothing || tree_.at(index).kind == PickleKind::kNone;
  }

  StatusOr<const PickleValue*> dict(const PickleValue& object, std::string_view name) const {
    const uint32_t index = field(object, name);
    if (index == PickleTree::kNothing || !is_dict(index)) {
      return bad(absl::StrFormat("%s is no dict", name));
    }
    return &tree_.at(index);
  }

  bool is_dict(uint32_t index) const {
    const PickleValue& value = tree_.at(index);
    return value.kind == PickleKind::kDict ||
           (value.kind == PickleKind::kObject && tree_.at(value.callee).text == "collections OrderedDict");
  }

  StatusOr<std::string_view> text(uint32_t index, std::string_view what) const {
    if (index == PickleTree::kNothing || tree_.at(index).kind != PickleKind::kText) {
      return bad(absl::StrFormat("%s is no text", what));
    }
    return tree_.at(index).text;
  }

  StatusOr<int64_t> integer(uint32_t index, std::string_view what) const {
    if (index == PickleTree::kNothing || tree_.at(index).kind != PickleKind::kInt || tree_.at(index).integer < 0) {
      return bad(absl::StrFormat("%s is no whole number from 0 on", what));
    }
    return tree_.at(index).integer;
  }

  // A torch.Size, or a plain tuple or list.
  StatusOr<std::vector<int64_t>> size(uint32_t index, std::string_view what) const {
    if (index == PickleTree::kNothing) {
      return bad(absl::StrFormat("%s is missing", what));
    }
    const PickleValue* value = &tree_.at(index);
    if (value->kind == PickleKind::kObject && tree_.at(value->callee).text == "torch Size") {
      const PickleValue& arguments = tree_.at(value->arguments);
      if (arguments.items.empty()) {
        return std::vector<int64_t>();
      }
      value = &tree_.at(arguments.items[0]);
    }
    if (value->kind != PickleKind::kTuple && value->kind != PickleKind::kList) {
      return bad(absl::StrFormat("%s is no torch.Size", what));
    }
    if (value->items.size() > 64) {
      return bad(absl::StrFormat("%s has %d dimensions", what, value->items.size()));
    }
    std::vector<int64_t> numbers;
    for (const uint32_t item : value->items) {
      KEEPSTEP_ASSIGN_OR_RETURN(const int64_t number, integer(item, what));
      numbers.push_back(number);
    }
    return numbers;
  }

  static std::string storage_key(std::string_view name, const std::vector<int64_t>& offsets) {
    std::string key(name);
    key.push_back('\0');
    key.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof(int64_t));
    return key;
  }

  Status read_storage(const PickleValue& metadata) {
    KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* storage, dict(metadata, "storage_data"));
    std::map<std::string, uint32_t, std::less<>> files;  // no hashes: a hostile file can choose names that collide
    for (size_t i = 0; i + 1 < storage->items.size(); i += 2) {
      KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* index, object(storage->items[i], "MetadataIndex", "a storage key"));
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string_view name, text(field(*index, "fqn"), "fqn"));
      KEEPSTEP_RETURN_IF_ERROR(spend(name.size()));
      std::vector<int64_t> offsets;
      if (const uint32_t offset = field(*index, "offset"); !is_none(offset)) {
        KEEPSTEP_ASSIGN_OR_RETURN(offsets, size(offset, "offset"));
      }
      KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* info,
                                object(storage->items[i + 1], "_StorageInfo", absl::StrFormat("'%s'", name)));
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string_view file, text(field(*info, "relative_path"), "relative_path"));
      KEEPSTEP_RETURN_IF_ERROR(spend(file.size()));
      KEEPSTEP_ASSIGN_OR_RETURN(const int64_t begin, integer(field(*info, "offset"), "offset"));
      KEEPSTEP_ASSIGN_OR_RETURN(const int64_t length, integer(field(*info, "length"), "length"));
      Extent extent{.offset = static_cast<uint64_t>(begin), .bytes = static_cast<uint64_t>(length)};
      if (const uint32_t transforms = field(*info, "transform_descriptors"); !is_none(transforms)) {
        if (tree_.at(transforms).items.size() > 8) {
          return bad("transform_descriptors has more than 8");
        }
        for (const uint32_t item : tree_.at(transforms).items) {
          KEEPSTEP_ASSIGN_OR_RETURN(const std::string_view transform, text(item, "transform_descriptors"));
          KEEPSTEP_RETURN_IF_ERROR(spend(transform.size()));
          extent.transforms.emplace_back(transform);
        }
      }
      const auto [known, added] = files.try_emplace(std::string(file), static_cast<uint32_t>(layout_.files.size()));
      if (added) {
        layout_.files.emplace_back(file);
      }
      extent.file = known->second;
      extents_[storage_key(name, offsets)] = std::move(extent);
    }
    return absl::OkStatus();
  }

  StatusOr<Extent> extent_of(std::string_view name, const std::vector<int64_t>& offsets) {
    KEEPSTEP_RETURN_IF_ERROR(spend(name.size()));
    const auto found = extents_.find(storage_key(name, offsets));
    if (found == extents_.end()) {
      return bad(absl::StrFormat("nothing says where a part of '%s' lies", name));
    }
    return found->second;
  }

  Status read_entry(const std::string& name, uint32_t index) {
    if (object(index, "BytesStorageMetadata", "").ok()) {
      KEEPSTEP_ASSIGN_OR_RETURN(layout_.objects[name].extent, extent_of(name, {}));
      return absl::OkStatus();
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* entry,
                              object(index, "TensorStorageMetadata", absl::StrFormat("'%s'", name)));
    TensorEntry& tensor = layout_.tensors[name];
    KEEPSTEP_ASSIGN_OR_RETURN(tensor.shape, size(field(*entry, "size"), "size"));
    const uint32_t properties = field(*entry, "properties");
    if (properties == PickleTree::kNothing) {
      return bad(absl::StrFormat("'%s' has no properties", name));
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* described, object(properties, "TensorProperties", "properties"));
    const PickleValue* state = described->state == PickleTree::kNothing ? nullptr : &tree_.at(described->state);
    if (state == nullptr || state->kind != PickleKind::kTuple || state->items.empty() ||
        tree_.at(state->items[0]).kind != PickleKind::kGlobal) {
      return bad(absl::StrFormat("'%s' has no dtype", name));
    }
    tensor.dtype = std::string(tree_.at(state->items[0]).text.substr(std::string_view("torch ").size()));
    if (dtype_bytes(tensor.dtype) == 0) {
      return bad(absl::StrFormat("'%s' has no dtype", name));
    }
    const uint32_t chunks = field(*entry, "chunks");
    if (chunks == PickleTree::kNothing || tree_.at(chunks).kind != PickleKind::kList) {
      return bad(absl::StrFormat("'%s' has no list of chunks", name));
    }
    // In a hostile file, many tensors may share one list, and so make the layout much larger than the file.
    visited_ += tree_.at(chunks).items.size();
    if (visited_ > tree_.values.size()) {
      return bad("its chunks are shared");
    }
    for (const uint32_t item : tree_.at(chunks).items) {
      KEEPSTEP_ASSIGN_OR_RETURN(const PickleValue* chunk, object(item, "ChunkStorageMetadata", "a chunk"));
      Part part;
      KEEPSTEP_ASSIGN_OR_RETURN(part.offsets, size(field(*chunk, "offsets"), "offsets"));
      KEEPSTEP_ASSIGN_OR_RETURN(part.lengths, size(field(*chunk, "sizes"), "sizes"));
      KEEPSTEP_ASSIGN_OR_RETURN(part.extent, extent_of(name, part.offsets));
      tensor.parts.push_back(std::move(part));
    }
    return absl::OkStatus();
  }

  Status read_paths(const PickleValue& metadata) {
    const uint32_t data = field(metadata, "planner_data");
    if (is_none(data)) {
      return absl::OkStatus();
    }
    if (!is_dict(data)) {
      return bad("planner_data is no dict");
    }
    const PickleValue& paths = tree_.at(data);
    for (size_t i = 0; i + 1 < paths.items.size(); i += 2) {
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string_view name, text(paths.items[i], "a name"));
      KEEPSTEP_RETURN_IF_ERROR(spend(name.size()));
      const PickleValue& steps = tree_.at(paths.items[i + 1]);
      if ((steps.kind != PickleKind::kTuple && steps.kind != PickleKind::kList) || steps.items.size() > 100) {
        return bad(absl::StrFormat("the path of '%s' is no tuple", name));
      }
      StatePath path;
      for (const uint32_t step : steps.items) {
        const PickleValue& value = tree_.at(step);
        if (value.kind == PickleKind::kText) {
          KEEPSTEP_RETURN_IF_ERROR(spend(value.text.size()));
          path.emplace_back(std::string(value.text));
        } else if (value.kind == PickleKind::kInt) {
          path.emplace_back(value.integer);
        } else {
          return bad(absl::StrFormat("the path of '%s' has neither names nor numbers", name));
        }
      }
      if (const auto tensor = layout_.tensors.find(name); tensor != layout_.tensors.end()) {
        tensor->second.path = std::move(path);
      } else if (const auto object = layout_.objects.find(name); object != layout_.objects.end()) {
        object->second.path = std::move(path);
      }
    }
    return absl::OkStatus();
  }

  const PickleTree& tree_;
  const size_t bytes_;  // of the pickle
  Layout layout_;
  std::map<std::string, Extent> extents_;
  size_t visited_ = 0;
  uint64_t copied_ = 0;
};

}  // namespace

StatusOr<Layout> read_metadata(std::span<const std::byte> pickle) {
  KEEPSTEP_ASSIGN_OR_RETURN(const PickleTree tree, read_pickle(pickle, is_known));
  KEEPSTEP_ASSIGN_OR_RETURN(Layout layout, Converter(tree, pickle.size()).convert());
  KEEPSTEP_RETURN_IF_ERROR(check_layout(layout, {}));
  return layout;
}

}  // namespace keepstep::checkpoint::dcp
