#include "tests/bench/rows.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/bench/loops.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"

namespace okcvm::bench {
namespace fs = std::filesystem;
namespace {

std::string run_checked(const std::string& script, const fs::path& directory) {
  const auto result = test::run_script(script, directory, {}, std::chrono::seconds(300));
  if (result.exit_code != 0) throw std::runtime_error(script + ": " + result.output);
  return result.output;
}

/// The seconds a command takes, its start included, as people measure it. What `before` does is not counted.
Row command(std::string name, double target, std::string script, std::string before = "") {
  return {std::move(name), target,
          [script = std::move(script), before = std::move(before)](const fs::path& directory) {
            if (!before.empty()) run_checked(before, directory);
            const auto start = std::chrono::steady_clock::now();
            run_checked(script, directory);
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          }};
}

Row loop(std::string name, double target, double (*body)(LoopSizes), int files, int programs = 1) {
  return {std::move(name), target, [=](const fs::path& directory) {
            fs::create_directories(directory / "loop");
            if (::chdir((directory / "loop").c_str()) != 0) throw std::runtime_error("chdir");
            const LoopSizes sizes{.files = files};
            const double seconds = programs == 1 ? body(sizes) : by_programs(programs, body, sizes);
            if (::chdir("/") != 0) throw std::runtime_error("chdir");
            return seconds;
          }};
}

/// Seconds a MiB, by fio's own clock. What `before` does is not counted.
Row fio(std::string name, double target, const std::string& kind, const std::string& arguments,
        const std::string& before = "") {
  return {std::move(name), target, [=](const fs::path& directory) {
            if (!before.empty()) run_checked(before, directory);
            const auto output =
                run_checked("fio --name=b --filename=fio.data --ioengine=psync --output-format=json " +
                                arguments + " 2>/dev/null",
                            directory);
            const auto parsed = nlohmann::json::parse(output.substr(output.find('{')));
            return 1048576.0 / parsed.at("jobs").at(0).at(kind).at("bw_bytes").get<double>();
          }};
}

}  // namespace

void make_repository(const fs::path& where, int files) {
  fs::create_directories(where);
  for (int i = 0; i < files; ++i) {
    const auto folder = where / ("dir" + std::to_string(i / 300)) / ("sub" + std::to_string(i / 30 % 10));
    if (i % 30 == 0) fs::create_directories(folder);
    std::ofstream file(folder / ("file" + std::to_string(i) + ".txt"));
    // Text that compresses as sources do, with a word that grep finds in some files.
    for (int line = 0; line < 20 + i % 140; ++line)
      file << "line " << line << " of file " << i << (line % 97 == 0 ? " needle" : "") << " value "
           << i * 31 + line << "\n";
  }
  run_checked("git init -q . && git add -A && git commit -qm first && git gc -q", where);
}

std::vector<Row> make_rows(const RowOptions& options) {
  const auto repository = options.repository.string();
  const int files = options.files;
  std::vector<Row> rows{
      loop("create + write 4 KiB + close", 8, create_write_close, files),
      loop("stat", 0, stat_each, files),
      loop("stat of a missing name", 0, stat_missing, files),
      loop("open + read 4 KiB + close", 5.5, open_read_close, files),
      loop("readdir", 0, read_directory, files),
      loop("rename", 8, rename_each, files),
      loop("unlink", 6, unlink_each, files),
      loop("mkdir", 11, make_directories, files),
      loop("rmdir", 0, remove_directories, files),
      loop("create + write + close, 2 programs", 0, create_write_close, files, 2),
      loop("open + read + close, 2 programs", 0, open_read_close, files, 2),
      command("git clone", 2.8, "git clone -q --no-hardlinks " + repository + " clone"),
      // Files as young as git's index are read again by every status, so they are made older first.
      command("git status (first)", 0, "git -C clone status --porcelain",
              "find clone -path clone/.git -prune -o -type f -exec touch -d '1 hour ago' {} + &&"
              " git -C clone update-index -q --refresh"),
      command("git status (second)", 1.1, "git -C clone status --porcelain"),
      command("find -printf %s", 1.7, "find clone -printf '%s\\n' > /dev/null"),
      command("grep -r", 4.5, "grep -r needle clone > /dev/null"),
      command("grep -r (again)", 0, "grep -r needle clone > /dev/null"),
      command("cp -a", 8, "cp -a clone copy"),
      command("tar", 0, "tar -cf - clone | cat > /dev/null"),
      command("rm -rf", 8, "rm -rf copy"),
  };
  if (options.with_fio && test::have_program("fio")) {
    const auto megabytes = std::to_string(options.fio_megabytes) + "M ";
    const auto size = "--size=" + megabytes;
    // In a virtual machine the first use of memory costs more than the writing: it is used once before.
    rows.push_back(fio("fio sequential write", 1.05, "write",
                       size + "--rw=write --bs=1M --loops=2 --end_fsync=0",
                       "head -c " + megabytes + "/dev/zero > warm.data && rm warm.data"));
    rows.push_back(
        fio("fio sequential read", 1.05, "read", size + "--rw=read --bs=1M --loops=4 --invalidate=0"));
    rows.push_back(
        fio("fio 4 KiB random read", 1.10, "read",
            size + "--rw=randread --bs=4k --number_ios=200000 --norandommap --randrepeat=1 --invalidate=0"));
    rows.push_back(
        fio("fio 4 KiB write + fdatasync", 0, "write", "--size=16M --rw=write --bs=4k --fdatasync=1"));
  }
  return rows;
}

}  // namespace okcvm::bench
