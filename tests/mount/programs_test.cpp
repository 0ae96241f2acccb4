#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/manifest.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

struct Program {
  const char* name;
  const char* needs;   // a program that must be there
  const char* script;  // in an empty directory; $SOURCE is a tree to work on. What it prints must not depend
                       // on the place.
  bool same_tree;      // what it leaves is the same everywhere, times included
};

constexpr Program kPrograms[] = {
    {"Git", "git",
     "git clone -q --no-hardlinks $SOURCE clone; cd clone; git log --format=%s; echo new > new.txt; git add "
     "-A;"
     "git commit -qm second; git gc -q; git fsck --strict 2>&1; git status --porcelain; git checkout -q "
     "HEAD~1;"
     "ls | wc -l; git checkout -q -; git rev-parse HEAD; git worktree add -q ../tree; ls ../tree | wc -l",
     false},
    {"Tar", "tar",
     "tar -C $SOURCE -cf all.tar --exclude=.git --sort=name --mtime=@1000000 .; tar -xf all.tar; rm all.tar;"
     "find . -type d -exec touch -d @2000000 {} +; find . -type f | wc -l",
     true},
    {"Cp", "cp",
     "cp -a $SOURCE/tree copy; cp -a copy again; rm -rf copy; touch -d @2000000 .; find . | wc -l", true},
    {"Mv", "mv",
     "cp -a $SOURCE/tree a; mkdir b; mv a b/c; mv b/c d; rmdir b; touch -d @2000000 .; find . | sort", true},
    {"Rm", "rm", "cp -a $SOURCE here; rm -rf here; ls -A", false},
    {"Sed", "sed", "for i in 1 2 3; do echo a > f$i; done; sed -i s/a/b/ f1 f2 f3; cat f1 f2 f3; ls", false},
    {"Find", "find",
     "cp -a $SOURCE/tree t; find t -type f -printf '%s %P %m\\n' | sort; grep -r line t | sort | cksum",
     false},
    {"Make", "gcc",
     "cp $SOURCE/c/* .; make -j2 >/dev/null; ./program; touch part1.c; make -q || echo stale; make "
     ">/dev/null; "
     "make -q && ./program; make clean; ls",
     false},
    {"Sqlite", "sqlite3",
     "sqlite3 db 'pragma journal_mode=wal; create table t(who, n);';"
     "writer() { i=0; while [ $i -lt 60 ]; do sqlite3 -cmd '.timeout 30000' db \"insert into t values('$1', "
     "$i)\";"
     " i=$((i+1)); done; }; writer a & writer b & wait; sqlite3 db 'select who, count(*), sum(n) from t "
     "group by who;"
     " pragma integrity_check; pragma wal_checkpoint(truncate)'",
     false},
    {"Venv", "python3",
     "/usr/bin/python3 -m venv --without-pip env 2>/dev/null; ./env/bin/python -c 'print(6*7)'; echo "
     "'print(1)' > m.py;"
     "./env/bin/python -c 'import m'; ls __pycache__ | wc -l",
     false},
    {"Shell", "sh",
     "for i in 1 2 3; do echo line $i >> log; done; cat < log > copy; cmp log copy; mkfifo p; (echo piped > "
     "p) & cat p; "
     "wait; rm p; ln -s log l; cat l | wc -l; dd if=/dev/zero of=z bs=4096 count=100 2>/dev/null; wc -c < z; "
     "install -m 751 log i; stat -c '%a %s' i; touch -d @5 i; stat -c %Y i; mktemp -p . x.XXXXXX | wc -c",
     false},
};

std::ostream& operator<<(std::ostream& out, const Program& program) {
  return out << program.name;
}

class Programs : public MountedSession, public ::testing::WithParamInterface<Program> {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    const auto made = run_script(
        "mkdir source; cd source; git init -q .; mkdir -p tree/a/b tree/empty c;"
        "for i in $(seq 120); do echo line $i > tree/f$i; seq $i > tree/a/b/n$i; done; chmod 711 tree/f1 "
        "tree/a;"
        "ln -s f1 tree/link; ln tree/f2 tree/hard; touch -d @1234567890.123456789 tree/f3 tree/a;"
        "for i in 1 2 3 4; do echo \"int part$i(void){return $i;}\" > c/part$i.c; done;"
        "printf '#include <stdio.h>\\nint part1(void),part2(void),part3(void),part4(void);int main(void)"
        "{printf(\"%d\\\\n\",part1()+part2()+part3()+part4());return 0;}\\n' > c/main.c;"
        "printf 'OBJECTS=main.o part1.o part2.o part3.o part4.o\\nprogram: $(OBJECTS)\\n\\tgcc -o $@ $^\\n"
        "clean:\\n\\trm -f program $(OBJECTS)\\n' > c/Makefile;"
        "git add -A; git commit -qm first; git config -f .git/global safe.directory '*'; chmod -R a+rX .",
        session().scratch());
    ASSERT_EQ(made.exit_code, 0) << made.output;
  }

  CommandResult run_in(const fs::path& directory, const User& user) {
    return run({.arguments = {"/bin/sh", "-ec", GetParam().script},
                .directory = directory,
                .user = user,
                .environment = environment((session().scratch() / "source").string(), directory.string())});
  }

  /// Commits get the same ids everywhere, and git works on a repository of another owner.
  static std::vector<std::string> environment(const std::string& source, const std::string& home) {
    return {"SOURCE=" + source, "HOME=" + home, "GIT_CONFIG_GLOBAL=" + source + "/.git/global",
            "GIT_AUTHOR_DATE=@1000000 +0000", "GIT_COMMITTER_DATE=@1000000 +0000"};
  }

  void expect_same_results(const User& user) {
    const auto inside = shared_in_session() / "work", outside = plain() / "work";
    as_user(user, [&] {
      ASSERT_OK(::mkdir(inside.c_str(), 0755));
      ASSERT_OK(::mkdir(outside.c_str(), 0755));
    });
    const auto expected = run_in(outside, user);
    const auto got = run_in(inside, user);
    EXPECT_EQ(got.exit_code, 0) << got.output;
    EXPECT_EQ(got.output, expected.output);
    if (GetParam().same_tree) {
      EXPECT_EQ(differences(manifest_of(inside), manifest_of(outside)), std::vector<std::string>{});
    }
    EXPECT_EQ(run_script("rm -rf work", inside.parent_path(), user).exit_code, 0);
    EXPECT_FALSE(there_is(inside));
  }
};
INSTANTIATE_TEST_SUITE_P(, Programs, ::testing::ValuesIn(kPrograms),
                         [](const auto& program) { return std::string(program.param.name); });

TEST_P(Programs, WorkAsRootAsInAPlainDirectory) {
  if (!have_program(GetParam().needs)) GTEST_SKIP() << "no " << GetParam().needs;
  expect_same_results({});
}

TEST_P(Programs, WorkAsAnOrdinaryUserAsInAPlainDirectory) {
  if (!have_program(GetParam().needs)) GTEST_SKIP() << "no " << GetParam().needs;
  expect_same_results(kAlice);
}

TEST_P(Programs, WorkInASandboxThatBindsTheSessionElsewhere) {
  if (!have_program(GetParam().needs)) GTEST_SKIP() << "no " << GetParam().needs;
  if (!have_program("bwrap")) GTEST_SKIP() << "no bwrap";
  const auto bound = [&](const fs::path& directory) {
    std::vector<std::string> arguments = {"bwrap", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"};
    // Not all of /: bwrap fails where a mount anywhere below what it binds goes away at that moment.
    for (const std::string system : {"/usr", "/bin", "/lib", "/lib64", "/etc"})
      arguments.insert(arguments.end(), {"--ro-bind-try", system, system});
    arguments.insert(
        arguments.end(),
        {"--bind", directory.string(), "/tmp/work", "--ro-bind", (session().scratch() / "source").string(),
         "/tmp/source", "--unshare-all", "--chdir", "/tmp/work", "/bin/sh", "-ec", GetParam().script});
    return run({.arguments = std::move(arguments),
                .user = kAlice,
                .environment = environment("/tmp/source", "/tmp/work")});
  };
  const auto inside = shared_in_session() / "work", outside = plain() / "work";
  as_user(kAlice, [&] {
    ASSERT_OK(::mkdir(inside.c_str(), 0755));
    ASSERT_OK(::mkdir(outside.c_str(), 0755));
  });
  const auto expected = bound(outside);
  if (expected.exit_code != 0)
    GTEST_SKIP() << "does not work in bwrap on a plain directory either: " << expected.output;
  const auto got = bound(inside);
  EXPECT_EQ(got.exit_code, 0) << got.output;
  EXPECT_EQ(got.output, expected.output);
}

}  // namespace
}  // namespace okcvm::test
