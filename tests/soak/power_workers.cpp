#include "tests/soak/power_workers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <vector>

namespace okcvm::soak {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kRecord = 16;

/// Fresh bytes for every number, the same at every call.
std::string bytes_of(unsigned long number, std::size_t size) {
  std::string bytes(size, '\0');
  std::uint64_t state = number * 0x9e3779b97f4a7c15u + 1;
  for (auto& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return bytes;
}

std::size_t size_of(unsigned long number) {
  return 1 + number * 7919 % 20'000;
}

std::string record_of(unsigned long number) {
  std::string text = std::to_string(number);
  return std::string(kRecord - 1 - text.size(), '0') + text + "\n";
}

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool write_all(const FileDescriptor& file, const std::string& bytes) {
  return ::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

bool sync_folder(const fs::path& folder) {
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory && ::fsync(directory.get()) == 0;
}

bool is_there(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Only what was promised before the power began to fail counts: while a file system shuts down, it may still
/// say that something is safe.
class Notes {
 public:
  explicit Notes(const Worker& worker)
      : failed_(worker.failed),
        file_(::open(worker.notes.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644)) {}
  void add(const std::string& line) {
    if (!is_there(failed_)) static_cast<void>(write_all(file_, line + "\n"));
  }

 private:
  const fs::path failed_;
  FileDescriptor file_;
};

std::vector<std::string> notes_of(const Worker& worker) {
  std::vector<std::string> lines;
  std::ifstream file(worker.notes);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// Repeats `step` until it answers false. That is an error if it was before the power failed.
std::string repeat(const Worker& worker,
                   const std::function<bool(unsigned long number, Notes& notes)>& step) {
  Notes notes(worker);
  for (unsigned long number = 0; !is_there(worker.failed); ++number)
    if (!step(number, notes))
      return is_there(worker.failed) ? ""
                                     : "step " + std::to_string(number) + ": " + ::strerrorname_np(errno);
  return {};
}

using Check = std::function<std::string(const std::string& note)>;

std::string check_each(const Worker& worker, int& promises, const Check& check) {
  for (const auto& note : notes_of(worker)) {
    ++promises;
    if (auto lost = check(note); !lost.empty()) return lost;
  }
  return {};
}

/// The highest number noted, or -1.
long last_note(const Worker& worker, int& promises) {
  const auto notes = notes_of(worker);
  promises += static_cast<int>(notes.size());
  return notes.empty() ? -1 : std::stol(notes.back());
}

// -- New files in new folders: fsync(2) of the file alone makes all of it durable

fs::path new_file(const Worker& worker, unsigned long number) {
  return worker.top / ("d" + std::to_string(number / 6)) / "e" / std::to_string(number);
}

std::string make_files(const Worker& worker) {
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    const auto path = new_file(worker, number);
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    const FileDescriptor file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0640));
    if (!file || !write_all(file, bytes_of(number, size_of(number))) ||
        (number % 2 ? ::fsync(file.get()) : ::fdatasync(file.get())) != 0)
      return false;
    notes.add(std::to_string(number));
    return true;
  });
}

std::string check_files(const Worker& worker, int& promises) {
  return check_each(worker, promises, [&](const std::string& note) {
    const auto number = std::stoul(note);
    const auto path = new_file(worker, number);
    if (!is_there(path)) return "file " + note + " is not there";
    return content(path) == bytes_of(number, size_of(number)) ? "" : "file " + note + " has other bytes";
  });
}

// -- Write aside, fsync, rename, fsync of the folder

constexpr unsigned long kReplaced = 4;

std::string replace_files(const Worker& worker) {
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    const auto aside = worker.top / "aside";
    const FileDescriptor file(::open(aside.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
    if (!file || !write_all(file, record_of(number) + bytes_of(number, 5000)) || ::fsync(file.get()) != 0 ||
        ::rename(aside.c_str(), (worker.top / std::to_string(number % kReplaced)).c_str()) != 0 ||
        !sync_folder(worker.top))
      return false;
    notes.add(std::to_string(number));
    return true;
  });
}

std::string check_replaced(const Worker& worker, int& promises) {
  const long last = last_note(worker, promises);
  for (long number = std::max(0L, last - static_cast<long>(kReplaced) + 1); number <= last; ++number) {
    const auto found = content(worker.top / std::to_string(static_cast<unsigned long>(number) % kReplaced));
    if (found.size() != kRecord + 5000) return "version " + std::to_string(number) + " is cut off";
    const auto version = std::stol(found.substr(0, kRecord));
    if (version < number)
      return "version " + std::to_string(number) + " went back to " + std::to_string(version);
    if (found.substr(kRecord) != bytes_of(static_cast<unsigned long>(version), 5000))
      return "version " + std::to_string(version) + " has other bytes";
  }
  return {};
}

// -- Names alone, made durable by fsync of their folder

std::string change_names(const Worker& worker) {
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    const auto at = [&](char kind, unsigned long i) { return worker.top / (kind + std::to_string(i)); };
    if (::mkdir(at('n', number).c_str(), 0700) != 0 || ::symlink("n", at('l', number).c_str()) != 0 ||
        (number > 0 && (::rename(at('n', number - 1).c_str(), at('m', number - 1).c_str()) != 0 ||
                        ::unlink(at('l', number - 1).c_str()) != 0)) ||
        !sync_folder(worker.top))
      return false;
    notes.add(std::to_string(number));
    return true;
  });
}

std::string check_names(const Worker& worker, int& promises) {
  const long last = last_note(worker, promises);
  for (long number = 0; number <= last; ++number) {
    const auto at = [&](char kind) { return is_there(worker.top / (kind + std::to_string(number))); };
    const auto what = std::to_string(number);
    if (!at('n') && !at('m')) return "folder " + what + " is not there";
    if (number == last) continue;
    if (at('n') || !at('m')) return "the rename of folder " + what + " is undone";
    if (at('l')) return "link " + what + " is there again";
  }
  return {};
}

// -- Records: appended and synced, written with O_DSYNC, stored in a mapping

std::string append(const Worker& worker, int flags, bool sync) {
  const auto path = worker.top / "records";
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    const FileDescriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0644));
    if (!file || !write_all(file, record_of(number)) || (sync && ::fdatasync(file.get()) != 0)) return false;
    notes.add(std::to_string(number));
    return true;
  });
}

std::string append_and_sync(const Worker& worker) {
  return append(worker, 0, true);
}
std::string append_synced(const Worker& worker) {
  return append(worker, O_DSYNC, false);
}

std::string check_records(const Worker& worker, int& promises) {
  const long last = last_note(worker, promises);
  const auto found = content(worker.top / "records");
  for (long number = 0; number <= last; ++number)
    if (found.substr(std::min(found.size(), static_cast<std::size_t>(number) * kRecord), kRecord) !=
        record_of(static_cast<unsigned long>(number)))
      return "record " + std::to_string(number) + " of " + std::to_string(last + 1) + " is not there";
  return {};
}

constexpr std::size_t kMapped = 1 << 20;

std::string store_mapped(const Worker& worker) {
  FileDescriptor file(::open((worker.top / "records").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (!file || ::ftruncate(file.get(), kMapped) != 0 || ::fsync(file.get()) != 0)
    return is_there(worker.failed) ? "" : "the file cannot be made";
  char* const memory =
      static_cast<char*>(::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  if (memory == MAP_FAILED) return is_there(worker.failed) ? "" : "the file cannot be mapped";
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    if ((number + 1) * kRecord > kMapped) return true;
    std::memcpy(memory + number * kRecord, record_of(number).data(), kRecord);
    if (::msync(memory, kMapped, MS_SYNC) != 0) return false;
    notes.add(std::to_string(number));
    return true;
  });
}

// -- SQLite

std::string sqlite(const fs::path& top, const std::string& commands, int& exit_code) {
  const auto result =
      test::run({.arguments = {"sqlite3", "-bail", "-cmd", ".timeout 60000", top / "db", commands},
                 .directory = "/",
                 .timeout = kCommandLimit});
  exit_code = result.exit_code;
  return result.output;
}

std::string commit(const Worker& worker) {
  int exit_code = 0;
  // A rollback journal is durably gone only with synchronous=extra
  // (sqlite.org/pragma.html#pragma_synchronous).
  const char* mode = worker.id.size() % 2 ? "wal" : "delete";
  sqlite(worker.top, std::string("pragma journal_mode=") + mode + "; create table t(n);", exit_code);
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    sqlite(worker.top, "pragma synchronous=extra; insert into t values(" + std::to_string(number) + ");",
           exit_code);
    if (exit_code != 0) return false;
    notes.add(std::to_string(number));
    return true;
  });
}

std::string check_commits(const Worker& worker, int& promises) {
  const long last = last_note(worker, promises);
  if (last < 0) return {};
  int exit_code = 0;
  const auto sound = sqlite(worker.top, "pragma integrity_check;", exit_code);
  if (sound != "ok\n") return "integrity_check: " + sound;
  const auto count =
      sqlite(worker.top, "select count(*) from t where n <= " + std::to_string(last) + ";", exit_code);
  return count == std::to_string(last + 1) + "\n"
             ? ""
             : std::to_string(last + 1) + " rows were committed, there are " + count;
}

// -- What the daemon answered

/// The value of the first `"name": "..."` in JSON.
std::string field(const std::string& text, const std::string& name) {
  const auto at = text.find('"' + name + '"');
  const auto start = at == text.npos ? at : text.find('"', text.find(':', at));
  return start == text.npos ? "" : text.substr(start + 1, text.find('"', start + 1) - start - 1);
}

std::string take_snapshots(const Worker& worker) {
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    std::ofstream(worker.top / std::to_string(number % 20)) << bytes_of(number, size_of(number));
    const auto taken = worker.daemon->command({"snapshot", worker.id, "-m", std::to_string(number), "--json"},
                                              kCommandLimit);
    if (taken.exit_code != 0) return false;
    notes.add(field(taken.output, "id"));
    return true;
  });
}

std::string check_snapshots(const Worker& worker, int& promises) {
  const auto listed =
      worker.daemon->command({"snapshots", worker.id, "-n", "100000", "--json"}, kCommandLimit);
  if (auto lost = check_each(worker, promises,
                             [&](const std::string& note) {
                               return listed.output.find(note) == std::string::npos
                                          ? "snapshot " + note + " is lost"
                                          : "";
                             });
      !lost.empty())
    return lost;
  if (notes_of(worker).empty()) return {};
  const auto verified = worker.daemon->command({"verify", worker.id}, kCommandLimit);
  return verified.exit_code == 0 ? "" : "verify: " + verified.output;
}

/// Sessions of their own that come, are given a checkpoint, and go.
std::string keep_records(const Worker& worker) {
  return repeat(worker, [&](unsigned long number, Notes& notes) {
    const auto id = worker.id + "-" + std::to_string(number);
    if (worker.daemon->command({"create", "--id", id}, kCommandLimit).exit_code != 0) return false;
    notes.add("there " + id);
    std::ofstream(worker.daemon->mount_of(id) / "outputs/old") << "old";
    const auto document = worker.notes.string() + ".json";
    std::ofstream(document) << "{}";
    if (worker.daemon->command({"checkpoint", "save", id, document, "--id", "c1"}, kCommandLimit).exit_code !=
        0)
      return false;
    notes.add("checkpoint " + id);
    if (number % 2) return true;
    if (worker.daemon->command({"delete", id}, kCommandLimit).exit_code != 0) return false;
    notes.add("gone " + id);
    return true;
  });
}

std::string check_records_kept(const Worker& worker, int& promises) {
  const auto listed = worker.daemon->command({"list", "--json"}, kCommandLimit).output;
  std::set<std::string> gone, begun;
  const auto notes = notes_of(worker);
  for (const auto& note : notes)
    if (note.starts_with("gone ")) gone.insert(note.substr(5));
  const auto last = notes.empty() ? "" : notes.back().substr(notes.back().find(' ') + 1);
  return check_each(worker, promises, [&](const std::string& note) -> std::string {
    const auto id = note.substr(note.find(' ') + 1);
    const bool is_listed = listed.find('"' + id + '"') != std::string::npos;
    if (gone.contains(id)) {
      if (is_listed) return "the deleted session " + id + " is there again";
      if (worker.daemon->command({"create", "--id", id}, kCommandLimit).exit_code != 0)
        return "the id of the deleted session " + id + " cannot be used again";
      const bool has_files = is_there(worker.daemon->mount_of(id) / "outputs/old");
      worker.daemon->command({"delete", id}, kCommandLimit);
      return has_files ? "the files of the deleted session " + id + " are there again" : "";
    }
    if (id == last && !is_listed) return {};  // it was being deleted
    if (!is_listed) return "session " + id + " is lost";
    if (note.starts_with("checkpoint ") &&
        worker.daemon->command({"checkpoint", "load", id, "c1"}, kCommandLimit).exit_code != 0)
      return "the checkpoint of session " + id + " is lost";
    return {};
  });
}

}  // namespace

const WorkerKind kWorkerKinds[9] = {
    {"new files", "sh", make_files, check_files},
    {"replaced files", "sh", replace_files, check_replaced},
    {"names", "sh", change_names, check_names},
    {"appends", "sh", append_and_sync, check_records},
    {"O_DSYNC writes", "sh", append_synced, check_records},
    {"msync", "sh", store_mapped, check_records},
    {"sqlite commits", "sqlite3", commit, check_commits},
    {"snapshots", "sh", take_snapshots, check_snapshots},
    {"sessions", "sh", keep_records, check_records_kept},
};

}  // namespace okcvm::soak
