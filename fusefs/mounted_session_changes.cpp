// What changed in a session, and what the kernel is told of what the daemon itself changes.

#include <algorithm>

#include "fusefs/mounted_session.h"

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::seconds kWritingTimeout{60};  // for the pages of one file

}  // namespace

/// Where the kernel keeps the pages of open files itself, it has not written yet what was stored through
/// mappings, and does when it is told to forget them. Only while requests pass: it waits for a truncate. A
/// snapshot does not wait for a workdir's file system.
void MountedSession::fetch_mapped_stores(Stores which) {
  bool has_asked = false;
  for (const NodeId id : nodes_->open_for_writing()) {
    const bool is_wanted = which == Stores::kAll || rule_of(nodes_->zone_of(id)).snapshotted;
    if (!is_wanted || !nodes_->open_state(id).may_hide_stores()) continue;
    notifier_.inode(id);
    has_asked = true;
  }
  if (has_asked) notifier_.drain_while_told(kWritingTimeout);
}

ChangeSet MountedSession::cut_held() {
  std::vector<RelPath> in_flight = operations_.recorder().written_now();
  ChangeSet changes = changes_->cut();
  for (const auto& path : in_flight) changes_->record(ChangeKind::kContent, path);
  changes.in_flight = std::move(in_flight);
  return changes;
}

ChangeSet MountedSession::cut_changes() {
  operations_.forget_unknown();
  fetch_mapped_stores(Stores::kSnapshotted);
  const Gate::Closing closing(gates_.managed);
  return cut_held();
}

void MountedSession::mark_changed(const std::vector<RelPath>& paths) {
  for (const auto& path : paths) changes_->record(ChangeKind::kContent, path);
}

class MountedSession::SessionHold final : public SessionMount::Hold {
 public:
  explicit SessionHold(MountedSession& session) : session_(session), untold_(*session.state_) {
    session_.gates_.managed.lock();
  }
  ~SessionHold() override {
    session_.gates_.managed.unlock();
    session_.notifier_.drain();  // only now: a notice may wait for a request that was held back
    if (replaces_) session_.forget_names();
  }
  ChangeSet cut_changes() override { return session_.cut_held(); }
  void will_replace(const std::vector<RelPath>& paths) override {
    replaces_ = true;
    session_.state_->note_going(paths);
    session_.operations_.names_will_go(paths);
  }
  void invalidate(const std::vector<RelPath>& changed) override { session_.invalidate(changed); }

 private:
  MountedSession& session_;
  const SessionState::Untold untold_;
  bool replaces_ = false;
};

std::unique_ptr<SessionMount::Hold> MountedSession::hold() {
  fetch_mapped_stores(Stores::kSnapshotted);
  return std::make_unique<SessionHold>(*this);
}

/// After a daemon died while it changed the workspace: nobody knows of what the kernel was told and what not.
/// Every name in a directory that the kernel knows may be one that it believes absent, and every one it knows
/// may be gone.
void MountedSession::tell_everything() {
  std::vector<RelPath> paths = state_->going();
  const bool knows_all_going = state_->knows_all_going();
  std::vector<NodeId> directories;
  for (const auto& rule : kZoneRules)
    if (rule.snapshotted) directories.push_back(node_of(rule.zone));
  for (const Node& node : nodes_->descendants(kRootNode, [](const Node&) { return true; })) {
    if (!rule_of(node.zone).snapshotted) continue;
    // The kernel may still reach it by a name that nobody knows any more: then it is to hear ESTALE, and look
    // again.
    if (node.dead && !knows_all_going) nodes_->drop_last_status(node.id);
    if (auto path = tell_of(node)) paths.push_back(std::move(*path));
    operations_.part_with_gone(node);
  }
  for (const Node& node : nodes_->directories())  // also those of which it is not known where they are
    if (rule_of(node.zone).snapshotted) directories.push_back(node.id);
  for (const NodeId id : directories) add_names_in(id, paths);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  const auto late = notifier_.times_late();
  hold()->invalidate(paths);
  for (const NodeId id : directories) operations_.have_found(id);
  forget_names();
  if (notifier_.times_late() == late) state_->set_all_told();
}

/// Tells the kernel of an inode that may have changed or gone. Answers the name that it may know it by, where
/// one is known here.
std::optional<RelPath> MountedSession::tell_of(const Node& node) {
  if (S_ISREG(node.type) || node.dead) notifier_.inode(node.id);  // another of its names may be gone
  if (node.dead) return std::nullopt;                             // its last one is among those that went
  if (operations_.orphans().keeps(node.id)) operations_.name_may_go(node.id);
  // The table has no long names. If it is gone, the kernel is to ask for it, hear that (ESTALE), and look
  // again; nothing unused may keep it.
  if (node.name.empty()) {
    backings_.drop_unused(node.id);
    notifier_.inode(node.id);
  }
  // By the directory it is known in: it may be gone itself.
  auto parent = nodes_->find(node.parent);
  auto name = Name::parse(node.name);
  if (!parent || !name) return std::nullopt;
  auto directory = operations_.path_of(*parent);
  if (!directory) return std::nullopt;
  return *directory / *name;
}

/// Adds what is in a directory now. If it is gone, its own name is among the paths.
void MountedSession::add_names_in(NodeId id, std::vector<RelPath>& paths) {
  auto node = nodes_->find(id);
  if (!node) return;
  auto directory = operations_.path_of(*node);
  if (!directory) return;
  [[maybe_unused]] auto listed = operations_.list(id, 0, [&](const ListedName& row) {
    if (auto name = Name::parse(row.name)) paths.push_back(*directory / *name);
    return true;
  });
}

/// Once the kernel was told: were they forgotten before, none could tell it after a death in between.
void MountedSession::forget_names() {
  {
    const Gate::Closing closing(gates_.managed);
    operations_.names_went();
  }
  notifier_.drain();
}

/// Called under a hold. The notices are told when it ends, before its destructor returns.
void MountedSession::invalidate(const std::vector<RelPath>& changed) {
  nodes_->distrust_all();
  operations_.directories().drop_all();
  files_.tell_kernel(changed);
}

}  // namespace okcvm::fusefs
