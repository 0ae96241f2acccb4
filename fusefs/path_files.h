#pragma once

#include <climits>
#include <string>
#include <vector>

#include "fusefs/files.h"
#include "fusefs/gate.h"
#include "fusefs/operations.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Nodes found along a path, referenced as the kernel would, and let go again with this object. Not
/// thread-safe.
class Walk {
 public:
  explicit Walk(Operations& operations) : operations_(&operations) {}
  Walk(Walk&& other) noexcept
      : entries(std::move(other.entries)),
        names(std::move(other.names)),
        operations_(other.operations_),
        text_size_(std::exchange(other.text_size_, 0)) {
    other.entries.clear();
    other.names.clear();
  }
  Walk& operator=(Walk&& other) noexcept {
    std::swap(entries, other.entries);
    std::swap(names, other.names);
    std::swap(operations_, other.operations_);
    std::swap(text_size_, other.text_size_);
    return *this;
  }
  ~Walk() {
    while (!entries.empty()) pop();
  }

  const Entry& last() const { return entries.back(); }
  void push(const Entry& entry, Name name) {
    entries.push_back(entry);
    text_size_ += name.text().size() + 1;
    names.push_back(std::move(name));
  }
  void pop() {
    if (entries.back().id.value) operations_->forget_own(entries.back().id);
    entries.pop_back();
    if (names.empty()) return;
    text_size_ -= names.back().text().size() + 1;
    names.pop_back();
  }
  /// Back to the session root, which stays.
  void rewind() {
    while (entries.size() > 1) pop();
  }
  /// Whether it is not too deep to have a path.
  bool has_path() const { return text_size_ <= PATH_MAX; }
  /// Only if it has one.
  RelPath path() const {
    RelPath path;
    for (const auto& name : names) path = path / name;
    return path;
  }

  std::vector<Entry> entries;  // the session root first
  std::vector<Name> names;     // of all but the root

 private:
  Operations* operations_;
  std::size_t text_size_ = 0;  // of the path and a terminating NUL
};

FileInfo info_of_entry(const Entry& entry, std::string name);

class PendingParts;

/// Files by path, in terms of Operations by node. Thread-safe.
class PathFiles final : public Files {
 public:
  PathFiles(Operations& operations, Workspace& workspace, Gates& gates, Invalidator& kernel,
            SessionState& state)
      : operations_(operations), workspace_(workspace), gates_(gates), kernel_(kernel), state_(state) {}

  Result<FileInfo> stat(const Caller& caller, const RelPath& path, bool follow) override;
  Result<Listing> list(const Caller& caller, const RelPath& path, std::string_view after,
                       std::size_t limit) override;
  Result<OpenedFile> open(const Caller& caller, const RelPath& path) override;
  Result<std::string> read_link(const Caller& caller, const RelPath& path) override;
  Result<RelPath> resolve(const Caller& caller, std::string_view path, bool must_exist) override;
  Result<std::unique_ptr<IncomingFile>> create(const Caller& caller, const RelPath& path,
                                               std::optional<mode_t> mode, IfExists if_exists,
                                               EntryCheck check) override;
  Result<bool> make_directories(const Caller& caller, const RelPath& path, mode_t mode,
                                const EntryCheck& check) override;
  Result<void> remove(const Caller& caller, const RelPath& path, bool recursive, const EntryCheck& check,
                      const GoesOn& goes_on) override;
  Result<void> empty_zone(Zone zone, const GoesOn& goes_on) override;
  Result<WorkspaceInfo> info(const GoesOn& goes_on) override;

  /// Removes what a daemon that died had staged in the workspace.
  void remove_leftovers();

  /// What stands at these paths may have changed behind the kernel's back: asks it to forget. Called without
  /// the gate, or under a hold; the notices go out in the background. Quickest when sorted.
  void tell_kernel(const std::vector<RelPath>& changed);

 private:
  enum class Last : std::uint8_t { kFollow, kKeep, kFollowByName };  // the last: also beyond what is missing
  /// A name in a directory.
  struct Placed {
    NodeId directory;
    Name name;
    friend bool operator==(const Placed&, const Placed&) = default;
  };
  struct Making {
    mode_t mode;
    std::vector<Placed>& made;
    Zone closed;  // see ClosedFor
  };
  /// Walks to `path`. The last entry may be absent (id 0); everything before it must be a directory that the
  /// caller may search. With `making`, the directories that are missing on the way are made, the last too.
  Result<Walk> walk(const Caller& caller, std::string_view path, Last last, const Making* making = nullptr);
  /// Takes the mount point off an absolute way; false: it is relative.
  Result<bool> take_mount_point(std::string_view& way, const std::string& asked) const;
  /// What a link says comes next. Its node is let go.
  Result<void> follow_link(NodeId link, Walk& walk, PendingParts& pending, const std::string& asked);
  /// With a reference of this process's own.
  Result<Entry> look_up(NodeId directory, const char* name);
  Result<Entry> own(Result<Entry> entry);
  Result<Entry> make_on_way(const Caller& caller, const Walk& walk, const Name& name, const Making& making);
  Result<Walk> walk_existing(const Caller& caller, std::string_view path, Last last);
  Result<Walk> walk_making(const Caller& caller, const RelPath& path, const Making& making);
  /// Of the name and what it stands for, not of the directory that lists it. Answers a directory that the
  /// kernel knows by another name, and is to look for here.
  std::optional<NodeId> tell_kernel(const Placed& placed);
  /// To the directory of that name, if it is one; a link is not followed.
  bool step_down(Walk& walk, Name name);
  Result<OpenedFile> open_once(const Caller& caller, const RelPath& path, NodeId& opened);
  struct Incoming;
  class StagedFile;
  Result<PublishedFile> publish(Incoming& incoming);
  /// What a check says of the entry at a path (null: there is none) and of what it leads to.
  Result<void> judge(const EntryCheck& check, const Caller& caller, const RelPath& path, const Entry* there);
  Result<void> put(Incoming& incoming, const Walk& parent, const std::string& name, unsigned flags);
  Result<void> remove_last(const Caller& caller, Walk& walk);
  /// `closed`: see ClosedFor.
  Result<void> remove_tree(const Caller& caller, Walk& walk, Zone closed, const GoesOn& goes_on);
  Result<bool> make_directories_alone(const Caller& caller, const RelPath& path, mode_t mode,
                                      const EntryCheck& check, Zone closed, std::vector<Placed>& made);
  Result<PublishedFile> publish_alone(Incoming& incoming, Zone closed, std::vector<Placed>& changed);
  Result<void> remove_alone(const Caller& caller, const RelPath& path, bool recursive,
                            const EntryCheck& check, const GoesOn& goes_on, Zone closed);
  /// Before a gate is passed or closed for a path in the workdir: asks its file system something. Where that
  /// does not answer, nobody is to wait but who asked. (One that stops answering later, is frozen, or is come
  /// to through a link still holds up the session.)
  void wait_for_file_system(std::string_view path) const;
  /// Fails where a way led into the workdir, through links, and its gate is open.
  Result<void> check_gates(const Walk& walk, Zone closed) const;
  /// Calls `change` with the zone of the path as `closed`, and again if it needs the workdir's closed.
  template <typename Change>
  static auto with_gates(const RelPath& path, Change change) {
    auto done = change(zone_named(path.top()));
    return !done && done.error().errno_value == kLeadsToWorkdir ? change(Zone::kWorkdir) : std::move(done);
  }
  static constexpr int kLeadsToWorkdir = -2;  // no errno
  Result<std::vector<Name>> names_in(NodeId directory);
  /// What a listing names and a look-up does not find: removed meanwhile, or mounted there by the host.
  static bool is_no_child(const Error& error);

  Operations& operations_;
  Workspace& workspace_;
  Gates& gates_;
  Invalidator& kernel_;
  SessionState& state_;
  Mutex publishing_;  // before the gate; what a check saw stays until the file is in its place
};

}  // namespace okcvm::fusefs
