#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// As git numbers them in packs (gitformat-pack(5)).
enum class ObjectKind : std::uint8_t { kCommit = 1, kTree = 2, kBlob = 3 };

/// The name that git gives these bytes.
Oid hash_object(ObjectKind kind, std::string_view bytes);

inline constexpr const char* kMainRef = "refs/heads/main";  // the newest snapshot
inline constexpr const char* kBaseRef = "refs/okcvm/base";  // what the workspace is after a restore
inline constexpr const char* kUndoRef = "refs/okcvm/undo";  // what the last restore started from
inline constexpr const char* kOwnFolder = "okcvm";          // in the repository, ours: journal, index
inline constexpr const char* kLock = "lock";                // there: held by who works on the repository
inline constexpr const char* kIncoming = "incoming";        // in our folder: objects on their way in

/// One bare repository: objects by name and refs by compare-and-swap. Not thread-safe.
class Repository final {
 public:
  /// `corrupt` if it cannot be opened.
  static Result<std::unique_ptr<Repository>> open(const std::filesystem::path& folder);
  /// Makes an empty one in a single step: a crash leaves none.
  static Result<std::unique_ptr<Repository>> create(const std::filesystem::path& folder);
  ~Repository();
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;

  /// The repository folder and our own folder in it, held open.
  int folder() const { return folder_.get(); }
  int own_folder() const { return own_folder_.get(); }
  const std::filesystem::path& path() const { return path_; }

  /// An object's bytes, checked against its name. `corrupt`, naming it, if absent, damaged or of another
  /// kind.
  Result<std::string> read(const Oid& oid, ObjectKind kind) const;
  /// The same in pieces, for blobs that need not fit in memory. The name is checked after the last piece.
  Result<void> read_stream(const Oid& oid, const std::function<Result<void>(std::string_view)>& sink) const;
  bool contains(const Oid& oid) const;
  /// The same, and it can be read.
  bool holds(const Oid& oid) const;

  /// Where a ref stands; nothing if there is none. `corrupt` if that cannot be told.
  Result<std::optional<Oid>> ref(const char* name) const;
  /// The same of a ref that can be done without: a file that is none is removed.
  Result<std::optional<Oid>> spare_ref(const char* name) const;
  /// Moves a ref that stands at `from` (nothing: that does not exist); `busy` if it stands elsewhere.
  Result<void> move_ref(const char* name, const std::optional<Oid>& from, const Oid& to);

  /// Why stock git would not take it for a repository, or find no snapshot in it, though all is there that we
  /// need.
  std::vector<std::string> problems_for_git() const;

  /// What to do about packs whose index is missing or damaged.
  std::vector<std::string> advice_on_indexes() const;

  /// Whether it is what stands at this path by now, with all that is ours in it.
  bool is_at(const std::filesystem::path& path) const;
  /// Which one it is, wherever it stands: device and inode.
  using Place = std::pair<dev_t, ino_t>;
  Place place() const;

  /// Looks for packs that came since.
  void refresh();
  /// Looks whether packs went since, as they do when somebody has git collect garbage: what they held may be
  /// nowhere any more, though it can still be read from those that are open. After something could not be
  /// read all is opened anew. Answers whether packs went.
  Result<bool> notice_removed_packs();
  /// To be called before packs are removed: what is open holds them still, and counts for nothing until
  /// reopen(), or notice_removed_packs() in its stead, succeeds.
  void will_lose_packs() { has_failed_ = true; }
  /// Forgets everything read so far: after packs were removed.
  Result<void> reopen();
  /// Lets go of the packs that are open, which take descriptors and memory maps. Nothing but
  /// notice_removed_packs(), which opens them again, may follow.
  void close();
  /// The same as reopen(), also of what was found damaged: that may be repaired. Where it fails nothing works
  /// until it, or notice_removed_packs(), succeeds.
  Result<void> open_anew();

 private:
  struct Handles;
  Repository() = default;

  std::filesystem::path path_;
  FileDescriptor folder_;
  FileDescriptor own_folder_;
  std::unique_ptr<Handles> handles_;
  mutable bool has_failed_ = false;  // something could not be read, which libgit2 remembers, or went
  std::set<std::string> packs_;      // of those that are open, as far as they were listed
};

}  // namespace okcvm::snapshots
