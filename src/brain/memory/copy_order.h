// In which order the objects of one memory server reach another one, so that a copy of a checkpoint there is whole or
// does not exist, whenever the connection breaks or this server dies. Pure.
//
// Writers put data, then .metadata, then the manifest; who removes a checkpoint begins with the manifest. So the peer
// must see the changes in the order in which they were made. A change is a key: when its turn comes, the peer gets what
// the key holds then, not what it held at the change. So a key that has changed again is not what its first turn was
// about. A manifest then lists files that have not come yet: at its first turn the peer drops the one that it has, and
// gets the new one at the last turn. Anything else may come early.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keepstep::brain {

class CopyOrder {
 public:
  using Key = std::pair<std::string, std::string>;  // a destination, and a key in it
  struct Object {
    Key key;
    std::string etag;
    uint64_t sequence = 0;  // grows with each change of any object
  };

  // A connection was made. `ours`: all objects of this server. `theirs`: what the peer has copied of it, with etags.
  // First the peer removes the manifests of what is gone, then it gets what it lacks, in the order of their sequence,
  // then the rest of what is gone: while a manifest is being replaced, its predecessor stays whole.
  void connected(const std::vector<Object>& ours, const std::map<Key, std::string>& theirs);
  void disconnected();

  // An object was put or removed. Ignored unless connected: connected() will tell.
  void changed(const Key& key);

  struct Turn {
    Key key;
    bool drop = false;  // the peer must remove the key, whatever it holds here
    bool operator==(const Turn&) const = default;
  };
  // Takes the next turn; std::nullopt: the peer is up to date, or not connected. If the peer does not take it, the
  // connection must end: what follows relies on it.
  std::optional<Turn> next();

  size_t waiting() const { return turns_.size(); }

 private:
  bool connected_ = false;
  uint64_t turn_ = 0;
  std::map<uint64_t, Turn> turns_;
  struct Turns {
    uint64_t first = 0;  // of a key that has changed again since; 0: it has not
    uint64_t last = 0;
  };
  std::map<Key, Turns> of_;
};

// Whether the key is that of a manifest or a pin: what makes a checkpoint exist.
bool makes_exist(const std::string& key);

}  // namespace keepstep::brain
