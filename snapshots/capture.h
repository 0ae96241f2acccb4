#pragma once

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "policy/error.h"
#include "snapshots/batch.h"
#include "snapshots/disk.h"
#include "snapshots/stat_index.h"
#include "snapshots/store.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// What a capture found besides the tree itself. Paths are those of the session.
struct Captured {
  std::uint64_t entries = 0;  // looked at
  std::uint64_t bytes = 0;    // read
  std::vector<RelPath> in_flight;
  std::vector<RelPath> still_mapped;

  /// Adds what a later capture of the same tree found.
  void add(Captured later);
};

/// Brings a marked tree in line with what is on the disk: looks at every marked entry, and reads the files
/// among them into the batch. What is not marked is not touched. One use; not thread-safe.
class Capture final {
 public:
  struct Trust {
    StatIndex* index = nullptr;     // none: nothing is recognised, everything marked is read
    std::int64_t cut_after_ns = 0;  // of the change set: what is not named there may have changed since
    bool by_stat = false;  // a file that looks as it did when it was read needs no reading (full comparison)
    bool recognizes = true;  // what was moved may still be what the index says; else it is read
  };
  /// `disk` is null while the session has no workspace.
  Capture(Tree& tree, const Disk* disk, Batch& batch, Trust trust, const Progress& progress)
      : tree_(tree), disk_(disk), batch_(batch), trust_(trust), progress_(progress) {}

  /// An entry that cannot be read is an error that names it: there is never a quiet gap.
  Result<Captured> run();

 private:
  struct LinkedInode {
    std::vector<std::string> paths;         // captured, the first of them the model for the others
    std::unordered_set<std::string> known;  // the same, while others are looked for
    std::uint64_t links = 0;
    std::optional<FileStamp> read;  // when the model's bytes were, if nobody can store in it without a trace
    void add(const std::string& path) {
      if (known.insert(path).second) paths.push_back(path);
    }
  };

  Result<void> zones();
  Result<void> directory(Node& node, const std::string& path);
  Result<void> list_whole(Node& node, int fd, std::vector<DiskRow> rows, const std::string& path);
  Result<void> entry(Node& node, int parent, const std::string& path, std::vector<Node*>& directories);
  Result<void> regular(Node& node, int parent, const struct stat& status, const std::string& path);
  /// Whether its bytes could be taken over from another name, which was read in this pass.
  Result<bool> take_from_model(Node& node, const struct stat& status);
  Result<void> read_small(Node& node, int fd, std::uint64_t& size, const std::string& path);
  Result<void> read_large(Node& node, int fd, const struct stat& status, std::uint64_t size,
                          const std::string& path);
  Result<void> pour(int fd, const struct stat& status, std::uint64_t size, const std::string& path,
                    std::string& chunk, BlobStream& stream);
  Result<void> link(Node& node, int parent, const struct stat& status, const std::string& path);
  Result<void> folder(Node& node, int parent, const std::string& path);
  bool stays_short(const std::string& known, const std::string& path);
  bool is_captured(const Node& node, const struct stat& status) const;
  bool needs_reading(const Node& node, const struct stat& status) const;
  /// Someone could write to it while it was read, without a trace.
  void note_mapped(const std::string& path);
  void note_in_flight(const std::string& path);

  using LinkGroups = std::map<std::uint32_t, std::vector<std::string>>;
  Result<void> join_links();
  void leave_groups(const LinkedInode& inode, const LinkGroups& former);
  Result<void> find_links(std::map<std::uint64_t, LinkedInode>& wanted);
  Result<void> walk_for_links(const std::string& path, std::map<std::uint64_t, LinkedInode>& wanted);
  Result<void> follow_model(const std::string& path, const std::string& model);

  Result<void> remove(Node& node);
  void leave_origin(const Node& node);
  Result<void> set_attributes(Node& node, Attributes attributes);
  void set_size(Node& node, std::uint64_t size);
  Result<void> tell_progress();
  void log_moves();

  Tree& tree_;
  const Disk* disk_;
  Batch& batch_;
  Trust trust_;
  const Progress& progress_;
  Captured found_;
  std::uint64_t told_at_bytes_ = 0;  // of found_.bytes, when progress was last told
  std::map<std::uint64_t, LinkedInode> linked_;
  std::vector<std::string> alone_;  // files of one link that had more
  // Of folders, from and to; of anything that is to be forgotten, to nowhere.
  std::vector<std::pair<std::string, std::string>> moves_;
};

}  // namespace okcvm::snapshots
