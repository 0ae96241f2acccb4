#include "tests/soak/workloads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace okcvm::soak {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kScriptLimit{600};

bool stopped(const Work& work) {
  return ::access(work.stop.c_str(), F_OK) == 0;
}

/// Repeats a script in a fresh directory; all its commands must succeed.
std::string repeat(const Work& work, const std::string& script) {
  for (int round = 0; !stopped(work); ++round) {
    const auto result = test::run_script(
        "SOURCE=" + work.source.string() + "\nmkdir round; cd round\n" + script + "\ncd ..; rm -rf round",
        work.top, {}, kScriptLimit);
    if (result.exit_code != 0)
      return "round " + std::to_string(round) + (result.timed_out ? " timed out" : "") + ", exit " +
             std::to_string(result.exit_code) + ":\n" + result.output;
  }
  return {};
}

std::string clone(const Work& work) {
  return repeat(work,
                "git clone -q --no-hardlinks $SOURCE c; cd c; echo more >> tree/f1; git commit -qam more;"
                "git gc -q; git fsck --strict 2>&1; test -z \"$(git status --porcelain)\"; cd ..");
}

std::string compile(const Work& work) {
  return repeat(
      work,
      "cp -r $SOURCE/c c; cd c; make -j2 > log 2>&1 || { cat log; exit 1; }; test \"$(./program)\" = 10;"
      "make -q; make clean > /dev/null; cd ..");
}

std::string verified_io(const Work& work) {
  return repeat(work,
                "fio --name=v --filename=data --size=8M --rw=randrw --bs=4k --ioengine=psync --verify=crc32c "
                "--verify_fatal=1 --do_verify=1 --fsync=64 --output=log --minimal || { cat log; exit 1; }");
}

std::string database(const Work& work) {
  return repeat(work,
                "sqlite3 db 'pragma journal_mode=wal; create table t(who, n);' > /dev/null;"
                "writer() { i=0; while [ $i -lt 40 ]; do sqlite3 -cmd '.timeout 60000' db"
                " \"insert into t values('$1', $i)\" || exit 1; i=$((i+1)); done; };"
                "writer a & one=$!; writer b & two=$!; wait $one; wait $two;"
                "test \"$(sqlite3 db 'select count(*), sum(n) from t')\" = '80|1560';"
                "test \"$(sqlite3 db 'pragma integrity_check')\" = ok");
}

std::string failure(const char* what, int round) {
  return std::string(what) + " in round " + std::to_string(round) + ": " + ::strerrorname_np(errno);
}

/// Every call is made by this process itself, so that any errno shows.
std::string rename_storm(const Work& work) {
  constexpr int kFiles = 20;
  const auto at = [&](int directory, int file) {
    return work.top / ("d" + std::to_string(directory)) / ("f" + std::to_string(file));
  };
  for (int directory = 0; directory < 3; ++directory)
    if (::mkdir((work.top / ("d" + std::to_string(directory))).c_str(), 0755) != 0)
      return failure("mkdir", 0);
  std::array<int, kFiles> place{};
  for (int file = 0; file < kFiles; ++file) {
    const FileDescriptor made(::open(at(0, file).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
    if (!made || ::write(made.get(), &file, sizeof file) != sizeof file) return failure("create", 0);
  }
  for (int round = 0; !stopped(work); ++round) {
    const int file = round % kFiles;
    auto& from = place[static_cast<std::size_t>(file)];
    const int to = (from + 1 + round / 7 % 2) % 3;
    if (::rename(at(from, file).c_str(), at(to, file).c_str()) != 0) return failure("rename", round);
    if (::access(at(from, file).c_str(), F_OK) == 0)
      return "the old name is still there, round " + std::to_string(round);
    from = to;
    const FileDescriptor opened(::open(at(to, file).c_str(), O_RDONLY | O_CLOEXEC));
    int content = -1;
    if (!opened || ::pread(opened.get(), &content, sizeof content, 0) != sizeof content)
      return failure("read", round);
    if (content != file) return "another file's bytes, round " + std::to_string(round);
    const auto linked = work.top / "link";
    if (::link(at(to, file).c_str(), linked.c_str()) != 0) return failure("link", round);
    if (::unlink(linked.c_str()) != 0) return failure("unlink", round);
    if (::mkdir(linked.c_str(), 0700) != 0) return failure("mkdir", round);
    if (::rmdir(linked.c_str()) != 0) return failure("rmdir", round);
  }
  return {};
}

/// What was acknowledged must be there, once and in order.
std::string ledger(const Work& work) {
  constexpr std::size_t kRecord = 16;
  const auto path = work.top / "ledger";
  int round = 0;
  for (; !stopped(work); ++round) {
    std::string record = std::to_string(round);
    record.insert(0, kRecord - 1 - record.size(), '0');
    record += '\n';
    const FileDescriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
    if (!file) return failure("open", round);
    if (::write(file.get(), record.data(), kRecord) != static_cast<ssize_t>(kRecord))
      return failure("append", round);
    if (round % 16 == 0 && ::fsync(file.get()) != 0) return failure("fsync", round);
  }
  std::ifstream file(path);
  int expected = 0;
  for (std::string line; std::getline(file, line); ++expected)
    if (std::stoi(line) != expected) return "record " + std::to_string(expected) + " is " + line;
  return expected == round
             ? ""
             : std::to_string(round) + " records acknowledged, " + std::to_string(expected) + " there";
}

/// Snapshots while files change. The daemon may be killed during a request: then the answer is lost and the
/// request is made again; what was answered must be there.
std::string snapshots(const Work& work) {
  int answered = 0;
  for (int round = 0; !stopped(work); ++round) {
    std::ofstream(work.top / ("file" + std::to_string(round % 50)))
        << std::string(1000, static_cast<char>('a' + round % 26));
    const auto result =
        work.daemon->command({"snapshot", work.id, "-m", "r" + std::to_string(round)}, kScriptLimit);
    answered += result.exit_code == 0;
    if (result.timed_out) return "a snapshot never ended, round " + std::to_string(round);
  }
  const auto listed = work.daemon->command({"snapshots", work.id, "-n", "100000", "--json"}, kScriptLimit);
  int found = 0;
  for (std::size_t at = 0; (at = listed.output.find("\"label\"", at)) != std::string::npos; ++at) ++found;
  if (found < answered)
    return std::to_string(answered) + " snapshots answered, " + std::to_string(found) + " there";
  const auto verified = work.daemon->command({"verify", work.id}, kScriptLimit);
  return verified.exit_code == 0 ? "" : "verify: " + verified.output;
}

struct Kind {
  const char* name;
  const char* needs;
  std::string (*run)(const Work& work);
};
constexpr Kind kKinds[] = {{"git clone", "git", clone},          {"compile", "gcc", compile},
                           {"fio verify", "fio", verified_io},   {"sqlite", "sqlite3", database},
                           {"rename storm", "sh", rename_storm}, {"ledger", "sh", ledger},
                           {"snapshots", "sh", snapshots}};

const Kind& kind_of(int number) {
  return kKinds[static_cast<std::size_t>(number) % std::size(kKinds)];
}

}  // namespace

std::string work_name(int number) {
  return kind_of(number).name;
}

std::string do_work(int number, const Work& work) {
  const auto& kind = kind_of(number);
  return test::have_program(kind.needs) ? kind.run(work) : rename_storm(work);
}

void make_source(const fs::path& where) {
  fs::create_directory(where);
  const auto made = test::run_script(
      "git init -q .; mkdir tree c; for i in $(seq 150); do seq $i > tree/f$i; done;"
      "for i in 1 2 3 4; do echo \"int part$i(void){return $i;}\" > c/part$i.c; done;"
      "printf '#include <stdio.h>\\nint part1(void),part2(void),part3(void),part4(void);int main(void)"
      "{printf(\"%%d\\\\n\",part1()+part2()+part3()+part4());return 0;}\\n' > c/main.c;"
      "printf 'OBJECTS=main.o part1.o part2.o part3.o part4.o\\nprogram: $(OBJECTS)\\n\\tgcc -o $@ $^\\n"
      "clean:\\n\\trm -f program $(OBJECTS)\\n' > c/Makefile; git add -A; git commit -qm first",
      where);
  if (made.exit_code != 0) throw std::runtime_error("the source repository: " + made.output);
}

}  // namespace okcvm::soak
