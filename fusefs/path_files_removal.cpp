// Files on their way out.

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "fusefs/caller_rights.h"
#include "fusefs/path_files.h"
#include "policy/zones.h"

namespace okcvm::fusefs {

/// Removes the last entry of a walk that stands below another one; its parent is the walk's last one then.
Result<void> PathFiles::remove_last(const Caller& caller, Walk& walk) {
  const Request request = request_of(caller);
  const NodeId parent = walk.entries[walk.entries.size() - 2].id;
  const Name& name = walk.names.back();
  state_.note_going(std::vector{walk.has_path() ? walk.path() : RelPath()});
  if (S_ISDIR(walk.last().attributes.st_mode)) {
    if (auto removed = operations_.remove_directory(request, parent, name.c_str()); !removed) return removed;
  } else {
    auto removed = operations_.unlink(request, parent, name.c_str());
    if (!removed) return fail(removed.error());
    operations_.let_go(*removed);
  }
  kernel_.entry(parent, name.text());
  kernel_.inode(walk.last().id);  // who has it open, or by another name, sees that a name is gone
  walk.pop();
  return {};
}

/// The same with everything below it. Not by recursion: users decide how deep their trees are. Called without
/// the gate; other requests go on between the steps.
Result<void> PathFiles::remove_tree(const Caller& caller, Walk& walk, Zone closed, const GoesOn& goes_on) {
  const std::size_t top = walk.entries.size();
  std::vector<std::vector<Name>> left;  // in the directories of the walk from `top` on
  // What somebody else removes meanwhile is removed.
  const auto is_gone = [&walk](const auto& done) {
    if (done || (done.error().errno_value != ENOENT && done.error().errno_value != ESTALE)) return false;
    walk.pop();
    return true;
  };
  const auto remove_alone = [&]() -> Result<void> {
    const ClosedFor alone(closed, gates_);
    auto removed = remove_last(caller, walk);
    return is_gone(removed) ? Result<void>() : removed;
  };
  while (walk.entries.size() >= top) {
    if (goes_on && !goes_on())
      return fail(Code::kBusy, "the removal was given up halfway: what is left stays; remove it again");
    const Entry& entry = walk.last();
    if (!S_ISDIR(entry.attributes.st_mode)) {
      if (auto removed = remove_alone(); !removed) return removed;
      continue;
    }
    if (top + left.size() == walk.entries.size()) {
      if (!may(caller, entry.attributes, R_OK | X_OK)) {  // as rm(1): it goes if it is empty
        auto removed = remove_alone();
        if (!removed && removed.error().errno_value == ENOTEMPTY)
          return fail(Error{Code::kForbidden, EACCES, "this user may not list what is in the directory",
                            walk.has_path() ? walk.path().text() : std::string()});
        if (!removed) return removed;
        continue;
      }
      const Gate::Pass pass(gates_.managed);
      auto listed = names_in(entry.id);
      if (is_gone(listed)) continue;
      if (!listed) return fail(listed.error());
      std::reverse(listed->begin(), listed->end());
      left.push_back(std::move(*listed));
    }
    if (left.back().empty()) {
      left.pop_back();
      if (auto removed = remove_alone(); !removed) return removed;
      continue;
    }
    Name child = std::move(left.back().back());
    left.back().pop_back();
    const Gate::Pass pass(gates_.managed);
    const auto held = look_up(entry.id, child.c_str());
    if (held ? held->id.value == 0 : is_no_child(held.error())) continue;
    if (!held) return fail(held.error());
    walk.push(*held, std::move(child));  // its node must stay while we are below it
    if (!may_remove(caller, walk.entries[walk.entries.size() - 2].attributes, walk.last().attributes))
      return fail_errno(EACCES);
  }
  return {};
}

Result<void> PathFiles::remove(const Caller& caller, const RelPath& path, bool recursive,
                               const EntryCheck& check, const GoesOn& goes_on) {
  wait_for_file_system(path.text());
  const SessionState::Untold untold(state_);
  auto removed = with_gates(
      path, [&](Zone closed) { return remove_alone(caller, path, recursive, check, goes_on, closed); });
  kernel_.drain();
  return removed;
}

Result<void> PathFiles::remove_alone(const Caller& caller, const RelPath& path, bool recursive,
                                     const EntryCheck& check, const GoesOn& goes_on, Zone closed) {
  std::optional<MutexLock> settled;
  if (check) settled.emplace(publishing_);
  ClosedFor alone(closed, gates_);
  if (path.is_root()) return fail(Code::kReadOnly, "the session root cannot be removed; delete the session");
  auto found = walk_existing(caller, path.text(), Last::kKeep);
  if (!found) return fail(found.error());
  if (auto fit = check_gates(*found, closed); !fit) return fit;
  // Known before what is in it goes. By where links led.
  if (found->path().depth() < 2)
    return fail(Code::kReadOnly, "what stands in the session root stays; remove what is in it", path.text());
  const Entry& directory = found->entries[found->entries.size() - 2];
  if (!may_remove(caller, directory.attributes, found->last().attributes))
    return fail(Code::kForbidden, "this user may not remove from the directory", path.text());
  if (check)
    if (auto allowed = judge(check, caller, path, &found->last()); !allowed) return allowed;
  const NodeId parent = directory.id;
  const bool is_tree = recursive && S_ISDIR(found->last().attributes.st_mode);
  if (is_tree) {  // no incoming file takes a directory's place: they need not wait for all that is in it
    alone.unlock();
    settled.reset();
  }
  auto result = is_tree ? remove_tree(caller, *found, closed, goes_on) : remove_last(caller, *found);
  if (!result) {
    Error error = result.error();
    if (error.errno_value == ENOTEMPTY)
      error.message = is_tree ? "something was made in the directory meanwhile: remove it again"
                              : "the directory is not empty; ask for it to be removed with its contents "
                                "(recursive)";
    result = explained(error, path.text());
  }
  kernel_.inode(parent);
  return result;
}

Result<void> PathFiles::empty_zone(Zone zone, const GoesOn& goes_on) {
  const SessionState::Untold untold(state_);
  const Caller root;
  Result<void> result;
  {
    const auto passing = [&](auto work) {
      const Gate::Pass pass(gates_.managed);
      return work();
    };
    auto names = passing([&] { return names_in(node_of(zone)); });
    if (!names) return fail(names.error());
    Walk walk(operations_);
    walk.entries.push_back(Entry{kRootNode});
    walk.push(Entry{node_of(zone)}, *Name::parse(rule_of(zone).name));
    for (auto& name : *names) {
      auto held = passing([&] { return look_up(node_of(zone), name.c_str()); });
      if (held ? held->id.value == 0 : is_no_child(held.error())) continue;
      if (held) walk.push(*held, std::move(name));
      result = held ? remove_tree(root, walk, zone, goes_on) : fail(held.error());
      if (!result) {
        result = explained(result.error(), rule_of(zone).name);
        break;
      }
    }
    kernel_.inode(node_of(zone));
  }
  kernel_.drain();
  return result;
}

}  // namespace okcvm::fusefs
