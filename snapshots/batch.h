#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/blob_stream.h"
#include "snapshots/oid.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {

class Compressor;

/// The objects of one snapshot on their way into a repository: one pack for all of them, and a loose object
/// for each file too large for memory. They wait in a folder of their own and come in together with
/// publish(); a batch that is dropped leaves nothing. Not thread-safe.
class Batch final {
 public:
  /// What the repository has already is not stored again: it is looked for, where something is damaged also
  /// read, and not even looked for in an empty one.
  enum class Trust : std::uint8_t { kHoldsNothing, kHoldsWhatItSays, kIsDamaged };
  /// Stores.
  explicit Batch(Repository& repository, Trust trust = Trust::kHoldsWhatItSays);
  /// Only computes names; publish() does nothing.
  Batch();
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// Blobs of this size and more are streamed, and stored loose, where they can be streamed out again.
  static constexpr std::uint64_t kStreamFrom = 8 << 20;

  bool stores() const { return repository_ != nullptr; }
  Result<Oid> add(ObjectKind kind, std::string bytes);
  /// Whether a blob of this name need not be stored.
  bool holds(const Oid& oid) const { return stores() && has(oid); }
  /// One at a time.
  Result<BlobStream> open_blob(std::uint64_t size, bool compress);
  Result<Oid> close_blob(BlobStream stream);

  /// Brings the objects in, on disk (fsync). `commit` is the one that a ref will name next: until the intent
  /// is dropped, a start that finds it unnamed removes what came in. `no_space` and the like leave nothing
  /// behind.
  Result<void> publish(const Oid& commit);
  /// The ref was moved.
  static void drop_intent(Repository& repository);
  /// After a crash: completes or removes what publish() brought in. Answers whether the last snapshot may not
  /// have been told to its change source.
  static Result<bool> recover(Repository& repository);
  /// Removes what was not brought in. The folder itself stays: on a full disk it could not be made again.
  static Result<void> clear_waiting_room(const Repository& repository);

 private:
  bool has(const Oid& oid) const;
  Result<void> bring_in(const Oid& pack);
  Result<std::string> intent(const Oid& commit, const Oid& pack) const;

  Repository* repository_ = nullptr;
  FileDescriptor incoming_;
  Trust trust_ = Trust::kHoldsNothing;
  std::unique_ptr<Compressor> compressor_;
  std::unordered_set<Oid, OidHash> added_;
  struct Loose {
    Oid oid;
    std::string draft;  // its name in the waiting room
  };
  std::vector<Loose> loose_;
  std::size_t drafts_ = 0;
  bool dirty_ = false;  // the waiting room holds something
};

}  // namespace okcvm::snapshots
