// What is killed: the steps, what there is before each, and what there may be after it.

#include "tests/snapshots/kill_sweep/works.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cstdlib>
#include <utility>

#include "policy/fault.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"

namespace okcvm::test {

namespace fs = std::filesystem;
using namespace snapshots;

std::unique_ptr<Store> open(const Place& place) {
  return value_of(Store::open(place.config()));
}

Store::RestoreHooks hooks(const Place& place) {
  return {nullptr, place.source(), nullptr};
}

Manifest manifest_of_zones(const fs::path& workspace) {
  Manifest manifest = manifest_of(workspace);
  manifest.erase(".");  // the backing folder itself is no part of a session
  return manifest;
}

namespace {

constexpr std::uint64_t kStreamed =
    (8 << 20) + 1;  // from 8 MiB on, a file is an object of its own (snapshots/batch.h)

std::string take(const Place& place, const std::string& label) {
  return value_of(open(place)->take(label, place.source(), nullptr)).id.text();
}

// -- What is in the workspace

void set_time(const fs::path& path, time_t seconds) {
  const timespec times[] = {{seconds, 1}, {seconds, 123'456'789}};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

void first_state(const Place& place, bool with_large = false) {
  for (const char* folder : {"uploads", "outputs/a/deep", "outputs/gone/b", "outputs/empty",
                             "outputs/moves/x", "outputs/closed", "outputs/.git", "temp"})
    fs::create_directories(place.in(folder));
  for (const char* name : {"a/1", "a/2", "a/deep/3", "gone/g", "gone/b/h", "kind", "moves/m", "moves/x/n",
                           "secret", "closed/c", ".git/config", "not\377utf8", "same", ".gitattributes"})
    write(place.in(std::string("outputs/") + name), std::string("one ") + name);
  ::setxattr(place.in("outputs/a/2").c_str(), "user.origin", "here", 4, 0);
  fs::create_hard_link(place.in("outputs/a/1"), place.in("uploads/one"));
  fs::create_hard_link(place.in("outputs/same"), place.in("temp/same"));
  fs::create_hard_link(place.in("outputs/moves/x/n"), place.in("temp/n"));
  fs::create_symlink("a", place.in("outputs/l"));
  fs::create_symlink("nowhere", place.in("outputs/dangling"));
  if (with_large) write(place.in("outputs/large"), std::string(kStreamed, 'x'));
  ::chmod(place.in("outputs/secret").c_str(), 0);
  ::chmod(place.in("outputs/closed").c_str(), 0);
  ::chmod(place.in("outputs/kind").c_str(), 04751);
  for (const char* path : {"outputs/a/2", "outputs/l", "outputs/a/deep", "outputs/a", "outputs"})
    set_time(place.in(path), 1'000'000'000);
  for (const char* zone : {"uploads", "outputs", "temp"}) place.note(ChangeKind::kTree, zone);
}

void second_state(const Place& place) {
  const auto changed = [&](ChangeKind kind, const std::string& path) { place.note(kind, "outputs/" + path); };
  changed(ChangeKind::kContent, "a/2");
  write(place.in("outputs/a/2"), "two");
  changed(ChangeKind::kAttributes, "a/2");
  ::removexattr(place.in("outputs/a/2").c_str(), "user.origin");
  changed(ChangeKind::kEntry, "gone");
  fs::remove_all(place.in("outputs/gone"));
  changed(ChangeKind::kTree, "came");
  fs::create_directories(place.in("outputs/came/d"));
  write(place.in("outputs/came/d/f"), "two");
  changed(ChangeKind::kTree, "kind");
  fs::remove(place.in("outputs/kind"));
  fs::create_directory(place.in("outputs/kind"));
  write(place.in("outputs/kind/k"), "two");
  changed(ChangeKind::kEntry, "l");
  fs::remove(place.in("outputs/l"));
  fs::create_symlink("kind", place.in("outputs/l"));
  place.note(ChangeKind::kMoved, "outputs/moves", "uploads/moved");
  fs::rename(place.in("outputs/moves"), place.in("uploads/moved"));
  place.note(ChangeKind::kContent, "uploads/moved/m");
  write(place.in("uploads/moved/m"), "two");
  place.note(ChangeKind::kMoved, "uploads/moved/x", "outputs/came/x");
  fs::rename(place.in("uploads/moved/x"), place.in("outputs/came/x"));
  place.note(ChangeKind::kEntry, "temp/same");
  fs::remove(place.in("temp/same"));
  place.note(ChangeKind::kEntry, "temp/n");
  fs::remove(place.in("temp/n"));
  changed(ChangeKind::kEntry, "joined");
  fs::create_hard_link(place.in("outputs/secret"), place.in("outputs/joined"));
  changed(ChangeKind::kAttributes, "closed");
  ::chmod(place.in("outputs/closed").c_str(), 0711);
  if (fs::exists(place.in("outputs/large"))) {
    changed(ChangeKind::kContent, "large");
    write(place.in("outputs/large"), std::string(kStreamed, 'y'));
  }
  for (const char* path : {"outputs/a", "outputs", "uploads"}) {
    place.note(ChangeKind::kAttributes, path);
    set_time(place.in(path), 1'100'000'000);
  }
}

void third_state(const Place& place) {
  place.note(ChangeKind::kContent, "outputs/a/deep/3");
  write(place.in("outputs/a/deep/3"), "three");
  place.note(ChangeKind::kEntry, "temp/new");
  write(place.in("temp/new"), "three");
}

/// One snapshot, more changes, another one, and changes that are in none.
Expected prepare_changes(const Place& place, bool with_large = false) {
  Expected expected;
  first_state(place, with_large);
  expected.answered.push_back(take(place, "one"));
  second_state(place);
  expected.before = expected.after = manifest_of_zones(place.workspace());
  return expected;
}

Expected prepare_restore(const Place& place, bool with_large = false) {
  Expected expected;
  first_state(place, with_large);
  expected.after = manifest_of_zones(place.workspace());
  expected.answered.push_back(take(place, "one"));
  second_state(place);
  expected.answered.push_back(take(place, "two"));
  third_state(place);
  expected.before = manifest_of_zones(place.workspace());
  return expected;
}

std::string oldest(Store& store) {
  return value_of(store.list(0)).back().id.text();
}

std::string restore_first(const Place& place, const std::vector<std::string>& paths) {
  std::vector<RelPath> scope;
  for (const auto& path : paths) scope.push_back(*RelPath::parse(path));
  const auto store = open(place);
  return value_of(store->restore(oldest(*store), scope, false, hooks(place), nullptr)).before->id.text();
}

/// As many packs as there may be before the small ones are merged.
Expected prepare_merge(const Place& place) {
  Expected expected;
  first_state(place);
  const auto store = open(place);
  const auto packs = [&] {
    const auto folder = place.repository() / "objects/pack";
    return fs::exists(folder) ? list(folder).size() / 2 : 0;
  };
  for (std::size_t most = 0, number = 0;; ++number) {
    if (number > 0) {
      write(place.in("outputs/a/2"), "number " + std::to_string(number));
      place.note(ChangeKind::kContent, "outputs/a/2");
    }
    if (packs() == 39) break;
    expected.answered.push_back(value_of(store->take("n", place.source(), nullptr)).id.text());
    if (packs() < most) throw std::runtime_error("packs were merged before there were 40");
    most = packs();
  }
  expected.before = expected.after = manifest_of_zones(place.workspace());
  return expected;
}

/// A restore that died half-way. Where that is, is found out once.
Expected prepare_half_restore(const Place& place) {
  const auto died_at = [&](int step) {
    ChildProcess child([&](ChildProcess&) {
      ::setenv("OKCVM_FAULT", ("kill:" + std::to_string(step)).c_str(), 1);
      fault_reset();
      restore_first(place, {});
      return 0;
    });
    return child.join() != 0;
  };
  static const int half = [&] {
    for (int step = 30;; ++step) {
      place.clear();
      prepare_restore(place);
      if (!died_at(step)) throw std::runtime_error("the restore came to its end");
      if (fs::exists(place.repository() / "okcvm/journal")) return step + 6;
    }
  }();
  place.clear();
  Expected expected = prepare_restore(place);
  if (!died_at(half)) throw std::runtime_error("the restore came to its end");
  return expected;
}

}  // namespace

const std::vector<Work>& works() {
  static const std::vector<Work> all{
      {"FirstSnapshot",
       [](const Place& place) {
         first_state(place);
         return Expected{manifest_of_zones(place.workspace()), manifest_of_zones(place.workspace()), {}};
       },
       [](const Place& place) { return take(place, "first"); }},
      {"Snapshot", [](const Place& place) { return prepare_changes(place); },
       [](const Place& place) { return take(place, "next"); }},
      {"SnapshotOfALargeFile", [](const Place& place) { return prepare_changes(place, true); },
       [](const Place& place) { return take(place, "next"); }},
      {"SnapshotThatMerges", prepare_merge, [](const Place& place) { return take(place, "merges"); }},
      {"Restore", [](const Place& place) { return prepare_restore(place); },
       [](const Place& place) { return restore_first(place, {}); }},
      {"RestoreOfALargeFile", [](const Place& place) { return prepare_restore(place, true); },
       [](const Place& place) { return restore_first(place, {}); }},
      {"RestoreOfPaths",
       [](const Place& place) {
         Expected expected = prepare_restore(place);
         const Manifest one = expected.after;
         expected.after = expected.before;
         for (const char* path :
              {"outputs/gone", "outputs/gone/g", "outputs/gone/b", "outputs/gone/b/h", "outputs/a/2"})
           expected.after[path] = one.at(path);
         expected.after.at("outputs").links += 1;
         return expected;
       },
       [](const Place& place) {
         return restore_first(place, {"outputs/gone", "outputs/a/2"});
       }},
      {"Undo",
       [](const Place& place) {
         Expected expected = prepare_restore(place);
         expected.answered.push_back(restore_first(place, {}));
         std::swap(expected.before, expected.after);
         third_state(place);
         expected.before = manifest_of_zones(place.workspace());
         return expected;
       },
       [](const Place& place) {
         return value_of(open(place)->undo(hooks(place), nullptr)).before->id.text();
       }},
      {"Fork",
       [](const Place& place) {
         Expected expected = prepare_changes(place);
         expected.answered.push_back(take(place, "two"));
         return expected;
       },
       [](const Place& place) {
         const auto store = open(place);
         for (const auto& snapshot : value_of(store->list(0)))
           if (snapshot.label == "two") value_of(store->fork(snapshot.id.text(), place.forked(), nullptr));
         return std::string();
       },
       true},
      {"StartAfterACrash", prepare_half_restore,
       [](const Place& place) {
         open(place);
         return std::string();
       }},
  };
  return all;
}

}  // namespace okcvm::test
