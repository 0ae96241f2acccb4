#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/routes/turns.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

class DaemonFiles : public DaemonWithSession {
 protected:
  HttpAnswer get(const std::string& path, const std::map<std::string, std::string>& headers = {}) {
    return ask("GET", "/v1/sessions/s1/files/" + path, {}, headers);
  }
  HttpAnswer put(const std::string& path, const std::string& text,
                 const std::map<std::string, std::string>& headers = {}) {
    return ask("PUT", "/v1/sessions/s1/files/" + path, text, headers);
  }
};

TEST_F(DaemonFiles, AreWrittenReadListedAndDeleted) {
  EXPECT_TRUE(get("outputs").json()["entries"].empty());
  EXPECT_EQ(put("outputs/a/b.txt", "bytes").status, 201);
  EXPECT_EQ(put("outputs/a/b.txt", "other").status, 200);
  EXPECT_EQ(read(mount("s1") / "outputs/a/b.txt"), "other");
  EXPECT_EQ(get("outputs/a/b.txt").body, "other");
  EXPECT_EQ(get("outputs/a/b.txt").headers["content-type"], "text/plain");
  const auto entry = get("outputs/a").json()["entries"][0];
  EXPECT_EQ(entry["path"], "outputs/a/b.txt");
  EXPECT_EQ(entry["size"], 5);
  EXPECT_EQ(get("").json()["entries"].size(), 5u);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/a").code(), "already_exists");
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/a?recursive=true").status, 200);
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "outputs/a"));
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/a").code(), "not_found");
}

TEST_F(DaemonFiles, AreListedInPages) {
  constexpr std::size_t kMost = 10'000;
  std::set<std::string> names;
  const auto many = mount("s1") / "outputs/many";
  std::filesystem::create_directory(many);
  for (std::size_t i = 0; i < kMost + 5; ++i) names.insert("f" + std::to_string(i));
  for (const auto& name : names) ASSERT_EQ(::mknod((many / name).c_str(), S_IFREG | 0644, 0), 0);
  for (const std::string limit : {"", "limit=4000&"}) {
    std::set<std::string> seen;
    std::vector<std::size_t> pages;
    std::string after;
    for (bool has_more = true; has_more;) {
      const auto page = get("outputs/many?" + limit + "after=" + after).json();
      pages.push_back(page["entries"].size());
      for (const auto& entry : page["entries"]) {
        EXPECT_GT(entry["name"], after);
        after = entry["name"];
        seen.insert(after);
      }
      has_more = page["truncated"];
    }
    EXPECT_EQ(seen, names);
    EXPECT_EQ(pages, limit.empty() ? (std::vector<std::size_t>{kMost, 5})
                                   : (std::vector<std::size_t>{4000, 4000, 2005}));
  }
  EXPECT_EQ(get("outputs/many?limit=20000").json()["entries"].size(), kMost);
  EXPECT_EQ(get("outputs?limit=1").json()["truncated"], false);
}

TEST_F(DaemonFiles, WithLongPathsAreListedInPagesOfABoundedSize) {
  constexpr std::size_t kDepth = 14, kFiles = 3000, kMostTexts = 4 << 20;
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/snapshots").status, 201);
  const std::string long_name(240, 'd');
  std::string path = "outputs";
  FileDescriptor at(::open((mount("s1") / path).c_str(), O_PATH));
  for (std::size_t depth = 0; depth < kDepth; ++depth) {
    ASSERT_EQ(::mkdirat(at.get(), long_name.c_str(), 0755), 0);
    at = FileDescriptor(::openat(at.get(), long_name.c_str(), O_PATH));
    path += "/" + long_name;
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < kFiles; ++i) names.insert(std::to_string(i));
  for (const auto& name : names) ASSERT_EQ(::mknodat(at.get(), name.c_str(), S_IFREG | 0644, 0), 0);
  std::set<std::string> seen;
  std::string after;
  for (bool has_more = true; has_more;) {
    const auto answer = get(path + "?after=" + after);
    ASSERT_LT(answer.body.size(), 2 * kMostTexts);
    const auto page = answer.json();
    for (const auto& entry : page["entries"]) seen.insert(entry["name"].get<std::string>());
    after = page["entries"].back()["name"];
    has_more = page["truncated"];
  }
  EXPECT_EQ(seen, names);
  const auto diff = ask("GET", "/v1/sessions/s1/diff");
  EXPECT_LT(diff.body.size(), 2 * kMostTexts);
  EXPECT_EQ(diff.json()["truncated"], true);
  EXPECT_GE(diff.json()["total"], kFiles);
}

TEST_F(DaemonFiles, AreListedToManyOfOneUserAtOnce) {
  for (int i = 0; i < 200; ++i) put("outputs/" + std::to_string(i), "x");
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 5; ++n) EXPECT_EQ(get("outputs").json()["entries"].size(), 200u);
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(DaemonFiles, AreListedAndRemovedByNoMoreThanHaveTakenTheirAnswers) {
  const auto many = mount("s1") / "outputs/many";
  std::filesystem::create_directory(many);
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(::mknod((many / (std::to_string(i) + std::string(200, 'n'))).c_str(), S_IFREG | 0644, 0), 0);
  put("outputs/few/f", "x");
  for (const std::string request :
       {"GET /v1/sessions/s1/files/outputs/few", "GET /v1/sessions/s1/files/outputs/f",
        "DELETE /v1/sessions/s1/files/outputs/few?recursive=true"}) {
    std::vector<HttpClient> slow;
    for (std::size_t i = 0; i < daemon::Turns::kMost; ++i) {
      slow.emplace_back(socket()).send(
          "GET /v1/sessions/s1/files/outputs/many HTTP/1.1\r\nConnection: close\r\n\r\n");
      ASSERT_EQ(slow.back().receive_some(1), 1u);
    }
    EXPECT_EQ(put("outputs/f", "x").status / 100, 2) << "takes no turn";
    HttpClient next(socket());
    next.send(request + " HTTP/1.1\r\n\r\n");
    if (request.ends_with("/f")) {
      EXPECT_EQ(next.receive().body, "x") << "takes no turn";
      continue;
    }
    EXPECT_TRUE(next.is_silent_for(std::chrono::milliseconds(500))) << request;
    while (slow.front().receive_some(1 << 20) > 0) continue;
    EXPECT_EQ(next.receive().status, 200) << request;
  }
}

TEST_F(DaemonFiles, TellWhatTheSessionIs) {
  const auto first = get(".metadata.json");
  EXPECT_EQ(first.body, read(mount("s1") / ".metadata.json"));
  EXPECT_EQ(first.json()["session_id"], "s1");
  EXPECT_EQ(get(".metadata.json", {{"Range", "bytes=0-1"}}).body, first.body.substr(0, 2));
  for (const char* labels : {R"({"labels":{"n":"1"}})", R"({"labels":{"n":"2"}})"}) {
    const auto known = get(".metadata.json").headers.at("etag");
    ASSERT_EQ(ask("POST", "/v1/sessions/s1/labels", labels).status, 200);
    const auto now = get(".metadata.json", {{"If-None-Match", known}});
    EXPECT_EQ(now.status, 200);
    EXPECT_EQ(now.body, read(mount("s1") / ".metadata.json"));
    EXPECT_EQ(get(".metadata.json", {{"If-None-Match", now.headers.at("etag")}}).status, 304);
    EXPECT_EQ(get(".metadata.json?stat=true").json()["etag"], now.headers.at("etag"));
  }
  const auto told = get(".metadata.json").headers.at("etag");
  stop();
  start();
  EXPECT_EQ(get(".metadata.json").headers.at("etag"), told);
}

TEST_F(DaemonFiles, AreServedInParts) {
  put("outputs/f", "0123456789");
  const auto part = get("outputs/f", {{"Range", "bytes=2-4"}});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "234");
  EXPECT_EQ(part.headers.at("content-range"), "bytes 2-4/10");
  EXPECT_EQ(get("outputs/f", {{"Range", "bytes=-3"}}).body, "789");
  EXPECT_EQ(get("outputs/f", {{"Range", "bytes=10-"}}).status, 416);
  EXPECT_EQ(get("outputs/f", {{"Range", "bytes=0-1,5-6"}}).body, "0123456789");
}

TEST_F(DaemonFiles, AreNotOverwrittenUnseen) {
  const auto first = put("outputs/f", "one").json()["etag"].get<std::string>();
  EXPECT_EQ(get("outputs/f").headers["etag"], first);
  EXPECT_EQ(get("outputs/f", {{"If-None-Match", first}}).status, 304);
  const auto second = put("outputs/f", "two two", {{"If-Match", first}});
  EXPECT_EQ(second.status, 200);
  const auto late = put("outputs/f", "three", {{"If-Match", first}});
  EXPECT_EQ(late.status, 412);
  EXPECT_EQ(late.code(), "busy");
  EXPECT_EQ(put("outputs/f", "new", {{"If-None-Match", "*"}}).status, 412);
  EXPECT_EQ(get("outputs/f").body, "two two");
  EXPECT_EQ(put("outputs/g", "new", {{"If-Match", "*"}}).status, 412);
  EXPECT_EQ(put("outputs/f", "new", {{"Content-Range", "bytes 5-7/8"}}).status, 400);
  EXPECT_EQ(put("outputs/f", "new", {{"Content-Type", "multipart/form-data; boundary=x"}}).status, 400);
  EXPECT_EQ(put("outputs/f", "new", {{"Content-Encoding", "gzip"}}).status, 400);
  EXPECT_EQ(put("outputs/f", "new", {{"If-None-Match", "*"}}).code(), "already_exists");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/f", {}, {{"If-Match", first}}).status, 412);
  const std::string now = second.json()["etag"];
  EXPECT_EQ(put("outputs/f", "new", {{"If-Match", "W/" + now}}).status, 412) << "weak";
  EXPECT_EQ(get("outputs/f", {{"If-None-Match", "W/" + now}}).status, 304);
  EXPECT_EQ(put("outputs/f", "two two", {{"If-Match", "W/" + now + ", " + now}}).status, 200);
  EXPECT_EQ(get("outputs").json()["entries"].size(), 1u);
  const auto remove = [&](const std::string& tag) {
    return ask("DELETE", "/v1/sessions/s1/files/outputs/f", {}, {{"If-Match", tag}}).status;
  };
  EXPECT_EQ(remove(first), 412);
  EXPECT_EQ(get("outputs/f").body, "two two");
  EXPECT_EQ(remove("W/" + get("outputs/f").headers["etag"]), 412);
  EXPECT_EQ(remove(get("outputs/f").headers["etag"]), 200);
  EXPECT_EQ(remove(first), 404);
}

TEST_F(DaemonFiles, AreNotOverwrittenUnseenWhereTheTimeWasSetBack) {
  const auto first = put("outputs/f", "one").json()["etag"].get<std::string>();
  const auto file = mount("s1") / "outputs/f";
  struct stat before {};
  ASSERT_EQ(::stat(file.c_str(), &before), 0);
  const FileDescriptor writer(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(writer.get(), "two", 3, 0), 3);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::futimens(writer.get(), times), 0);
  EXPECT_EQ(put("outputs/f", "mine", {{"If-Match", first}}).status, 412);
  EXPECT_EQ(get("outputs/f").body, "two");
}

TEST_F(DaemonFiles, AreAskedForByTheirTimes) {
  put("outputs/f", "one");
  const timespec times[2] = {{784111777, 500'000'000}, {784111777, 500'000'000}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (mount("s1") / "outputs/f").c_str(), times, 0), 0);
  const std::string then = "Sun, 06 Nov 1994 08:49:37 GMT";
  EXPECT_EQ(get("outputs/f").headers["last-modified"], then);
  for (const auto& same :
       {then, std::string("Sunday, 06-Nov-94 08:49:37 GMT"), std::string("Sun Nov  6 08:49:37 1994")})
    EXPECT_EQ(get("outputs/f", {{"If-Modified-Since", same}}).status, 304) << same;
  const std::string before = "Sun, 06 Nov 1994 08:49:36 GMT", after = "Sun, 06 Nov 1994 08:49:38 GMT";
  EXPECT_EQ(get("outputs/f", {{"If-Modified-Since", before}}).body, "one");
  EXPECT_EQ(get("outputs/f", {{"If-Modified-Since", after}}).status, 304);
  EXPECT_EQ(get("outputs/f", {{"If-Modified-Since", after}, {"If-None-Match", "\"other\""}}).body, "one")
      << "the tag alone counts";
  EXPECT_EQ(get("outputs/f", {{"If-Modified-Since", "yesterday"}}).body, "one");
  const auto ask_unmodified = [&](const char* method, const std::string& path, const std::string& since) {
    return ask(method, "/v1/sessions/s1/files/outputs/" + path, "two", {{"If-Unmodified-Since", since}})
        .status;
  };
  EXPECT_EQ(ask_unmodified("GET", "f", before), 412);
  EXPECT_EQ(ask_unmodified("GET", "f", then), 200);
  EXPECT_EQ(ask_unmodified("PUT", "f", before), 412);
  EXPECT_EQ(ask_unmodified("DELETE", "f", before), 412);
  EXPECT_EQ(get("outputs/f").body, "one");
  EXPECT_EQ(put("outputs/f", "two", {{"If-Unmodified-Since", before}, {"If-Match", "*"}}).status, 200)
      << "the tag alone counts";
  EXPECT_EQ(ask_unmodified("PUT", "f", then), 412) << "it has just been written";
  EXPECT_EQ(ask_unmodified("PUT", "new", before), 201) << "what is not there has no time";
}

TEST_F(DaemonFiles, ThatAreLinksAreDeletedByTheTagsThatAreToldOfThem) {
  put("outputs/f", "one");
  const auto link = mount("s1") / "outputs/link";
  const auto remove = [&](const char* condition, const std::string& tag) {
    return ask("DELETE", "/v1/sessions/s1/files/outputs/link", {}, {{condition, tag}}).status;
  };
  for (const bool by_target : {true, false}) {
    std::filesystem::create_symlink("f", link);
    const auto told = by_target ? get("outputs/link").headers["etag"]
                                : get("outputs/link?stat=true").json()["etag"].get<std::string>();
    EXPECT_EQ(remove("If-None-Match", told), 412);
    EXPECT_EQ(remove("If-Match", "\"other\""), 412);
    EXPECT_EQ(remove("If-Match", told), 200) << by_target;
    EXPECT_FALSE(std::filesystem::is_symlink(link));
  }
  EXPECT_EQ(get("outputs/f").body, "one");
}

TEST_F(DaemonFiles, ThatAreLinksAreReplacedByTheTagsThatAreToldOfThem) {
  put("outputs/f", "one");
  std::filesystem::create_symlink("f", mount("s1") / "outputs/link");
  const auto told = get("outputs/link").headers["etag"];
  EXPECT_EQ(put("outputs/f", "two").status, 200);
  EXPECT_EQ(put("outputs/link", "new", {{"If-Match", told}}).status, 412) << "what it leads to has changed";
  EXPECT_EQ(put("outputs/link", "new", {{"If-Match", get("outputs/link").headers["etag"]}}).status, 200);
  EXPECT_EQ(get("outputs/f").body, "two");
  EXPECT_EQ(get("outputs/link").body, "new");
}

TEST_F(DaemonFiles, KeepTheirModeWhenTheyAreReplaced) {
  const auto file = mount("s1") / "outputs/f";
  const auto told = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(file.c_str(), &status), 0);
    return std::tuple(status.st_mode & 07777, status.st_uid, status.st_gid);
  };
  put("outputs/f", "one");
  EXPECT_EQ(told(), std::tuple(0644u, 0u, 0u));
  ASSERT_EQ(::chown(file.c_str(), 1000, 100), 0);
  ASSERT_EQ(::chmod(file.c_str(), 04755), 0);
  EXPECT_EQ(put("outputs/f", "two").status, 200);
  EXPECT_EQ(told(), std::tuple(0755u, 1000u, 100u)) << "a write takes set-user-ID away";
  EXPECT_EQ(put("outputs/f?mode=600", "three").status, 200);
  EXPECT_EQ(told(), std::tuple(0600u, 1000u, 100u));
  EXPECT_EQ(read(file), "three");
}

TEST_F(DaemonFiles, ThatAreDirectoriesAreMadeOnCondition) {
  EXPECT_EQ(put("outputs/d?directory=true", "", {{"If-None-Match", "*"}}).status, 201);
  EXPECT_EQ(put("outputs/d?directory=true", "", {{"If-None-Match", "*"}}).status, 412);
  EXPECT_EQ(put("outputs/d?directory=true", "", {{"If-Match", "*"}}).status, 200);
  EXPECT_EQ(put("outputs/e?directory=true", "", {{"If-Match", "*"}}).status, 412);
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "outputs/e"));
}

TEST_F(DaemonFiles, AreThereWhileTheyAreReplaced) {
  put("outputs/f", "x");
  std::atomic<int> reading = 3;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (reading > 0) EXPECT_EQ(put("outputs/f", "x").status, 200);
    });
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) EXPECT_EQ(get("outputs/f").body, "x");
      --reading;
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(DaemonFiles, AreWrittenByOneOfManyWhoAskForTheSame) {
  constexpr int kWriters = 6;
  constexpr int kRounds = 50;
  const auto all_at_once = [](const std::function<void()>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
  };
  // Counting up by what was read: no step may be lost.
  put("outputs/n", "0");
  all_at_once([&] {
    for (int done = 0; done < kRounds;) {
      const auto now = get("outputs/n");
      const auto next = std::to_string(std::stoi(now.body) + 1);
      done += put("outputs/n", next, {{"If-Match", now.headers.at("etag")}}).status == 200;
    }
  });
  EXPECT_EQ(get("outputs/n").body, std::to_string(kWriters * kRounds));
  // Among parents that are missing at first.
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> made = 0;
    std::atomic<int> refused = 0;
    all_at_once([&] {
      const auto answer = put("outputs/" + std::to_string(round) + "/a/f", "x", {{"If-None-Match", "*"}});
      made += answer.status == 201;
      refused += answer.status == 412;
      const auto directory = "outputs/d" + std::to_string(round) + "?directory=true";
      made += put(directory, "", {{"If-None-Match", "*"}}).status == 201;
    });
    EXPECT_EQ(made, 2) << "the file and the directory";
    EXPECT_EQ(refused, kWriters - 1);
  }
}

TEST_F(DaemonFiles, HaveOneTagWhoeverElseWritesAtTheSameTime) {
  constexpr int kWriters = 3;
  constexpr int kRounds = 150;
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> tags;  // by content, which nobody else writes
  const auto note = [&](const std::string& content, const std::string& tag) {
    const std::lock_guard lock(mutex);
    tags[content].insert(tag);
  };
  std::atomic<int> writing = kWriters;
  std::vector<std::thread> threads;
  put("outputs/f", "first");
  for (int writer = 0; writer < kWriters; ++writer)
    threads.emplace_back([&, writer] {
      for (int round = 0; round < kRounds; ++round) {
        const std::string content(static_cast<std::size_t>(1 + round * kWriters + writer), 'x');
        note(content, put("outputs/f", content).json()["etag"]);
      }
      --writing;
    });
  while (writing) {
    const auto seen = get("outputs/f");
    note(seen.body, seen.headers.at("etag"));
  }
  for (auto& thread : threads) thread.join();
  for (const auto& [content, told] : tags) EXPECT_EQ(told.size(), 1u) << content.size();
}

TEST_F(DaemonFiles, HaveNamesWithoutASlashAtTheEnd) {
  EXPECT_EQ(put("outputs/new/", "x").code(), "invalid_request");
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "outputs/new"));
  EXPECT_EQ(put("outputs/f", "kept").status, 201);
  EXPECT_EQ(put("outputs/f/", "x").code(), "invalid_request");
  EXPECT_EQ(get("outputs/f/").code(), "invalid_request");
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/f/").code(), "invalid_request");
  EXPECT_EQ(get("outputs/f").body, "kept");
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/d/?directory=true").status, 201);
  EXPECT_EQ(get("outputs/d/").status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/d/").status, 200);
}

TEST_F(DaemonFiles, CannotBeNamedOutsideOfTheSession) {
  for (const char* path :
       {"../x", "outputs/../../x", "outputs/%2e%2e/x", "/etc/passwd", "%2Fetc/passwd", ".."}) {
    EXPECT_EQ(get(path).code(), "path_traversal_blocked") << path;
    EXPECT_EQ(put(path, "x").code(), "path_traversal_blocked") << path;
    EXPECT_EQ(ask("DELETE", std::string("/v1/sessions/s1/files/") + path).code(), "path_traversal_blocked")
        << path;
  }
  for (const std::string& path :
       {std::string("outputs/a%00b"), std::string("outputs//a"), "outputs/" + std::string(256, 'a')})
    EXPECT_EQ(put(path, "x").code(), "invalid_request") << path;
  EXPECT_EQ(put("x", "x").code(), "read_only");
  EXPECT_EQ(put(".metadata.json", "x").code(), "read_only");
  EXPECT_EQ(put("skills/x", "x").code(), "read_only");
  EXPECT_FALSE(std::filesystem::exists(root_ / "state/workspaces/s1"));
}

TEST_F(DaemonFiles, MayHaveNamesThatAreNotText) {
  EXPECT_EQ(put("outputs/%FF%0A", "x").status, 201);
  const auto entry = get("outputs").json()["entries"][0];
  EXPECT_EQ(entry["encoded_path"], "outputs/%FF%0A");
  EXPECT_EQ(get(entry["encoded_path"]).body, "x");
  EXPECT_EQ(put("outputs/%FF%0A", "y").json()["encoded_path"], "outputs/%FF%0A");
  const auto uploaded = ask("POST", "/v1/sessions/s1/uploads?name=%FF.txt", "z").json();
  EXPECT_EQ(get(uploaded["encoded_path"]).body, "z");
  const auto made = put("outputs/%FE?directory=true", "").json();
  EXPECT_EQ(made["encoded_path"], "outputs/%FE");
  EXPECT_EQ(made["etag"], get("outputs/%FE?stat=true").json()["etag"]);
  for (const char* path : {"outputs/%FF%0A", "outputs/%FE"})
    EXPECT_EQ(ask("DELETE", std::string("/v1/sessions/s1/files/") + path).json()["encoded_path"], path);
}

TEST_F(DaemonFiles, AreLargeWithoutBeingHeldInMemory) {
  const std::string large(20'000'000, 'L');
  EXPECT_EQ(put("outputs/large", large).json()["size"], large.size());
  EXPECT_EQ(get("outputs/large").body, large);
}

TEST_F(DaemonFiles, LeaveNothingWhenTheClientGoes) {
  {
    HttpClient client(socket());
    client.send("PUT /v1/sessions/s1/files/outputs/half HTTP/1.1\r\nContent-Length: 1000\r\n\r\nsome");
  }
  put("outputs/whole", "x");
  EXPECT_EQ(get("outputs").json()["entries"].size(), 1u);
}

TEST_F(DaemonFiles, LeaveNothingWhenTheDaemonIsKilled) {
  const auto projects = root_ / "projects";
  std::filesystem::create_directories(projects / "a");
  if (!FileDescriptor(::open(projects.c_str(), O_WRONLY | O_TMPFILE, 0600)))
    GTEST_SKIP() << "the file system has no files without names";
  stop();
  start({"--workdir-allow-root", projects});
  create({{"id", "s2"}, {"workdir", projects / "a"}});
  const auto descriptors = "/proc/" + std::to_string(serving_pid()) + "/fd";
  std::vector<HttpClient> clients;
  for (const auto& [path, folder] :
       {std::pair("outputs/x", root_ / "state/workspaces/s2"), std::pair("workdir/x", projects / "a")}) {
    clients.emplace_back(socket()).send("PUT /v1/sessions/s2/files/" + std::string(path) +
                                        " HTTP/1.1\r\nContent-Length: 100\r\n\r\nsome");
    EXPECT_TRUE(comes_true([&, &folder = folder] {
      std::error_code ignored;
      for (const auto& link : std::filesystem::directory_iterator(descriptors)) {
        const auto file = std::filesystem::read_symlink(link, ignored).string();
        if (file.starts_with(folder.string() + "/#") || file.starts_with(folder.string() + "/.in"))
          return true;
      }
      return false;
    })) << path;
  }
  kill_daemon();
  EXPECT_TRUE(std::filesystem::is_empty(projects / "a"));
  for (const auto& entry : std::filesystem::directory_iterator(root_ / "state/workspaces/s2"))
    EXPECT_EQ(entry.path().filename(), "outputs");
  start({"--workdir-allow-root", projects});
}

TEST_F(DaemonFiles, GoWithTheirSessionHoweverDeepTheyAre) {
  constexpr int kDepth = 1'000;
  const rlimit few{256, 256};
  ASSERT_EQ(::prlimit(serving_pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::filesystem::create_directory(mount("s1") / "outputs/d");
  FileDescriptor at(::open((mount("s1") / "outputs/d").c_str(), O_RDONLY | O_DIRECTORY));
  for (int i = 1; i < kDepth; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0755), 0);
    at = FileDescriptor(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY));
  }
  at.reset();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/info").json()["directories"], kDepth);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/info").json()["directories"], kDepth);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "state/discarded"));
}

TEST_F(DaemonFiles, ArriveAsUploads) {
  const auto upload = [&](const std::string& name) {
    return ask("POST", "/v1/sessions/s1/uploads?name=" + name, "%PDF-1.4\n");
  };
  const auto first = upload("..%2F..%2Freport.pdf").json();
  EXPECT_EQ(first["path"], "uploads/report.pdf");
  EXPECT_EQ(first["type"], "pdf");
  EXPECT_EQ(first["mime_type"], "application/pdf");
  EXPECT_EQ(first["size"], 9);
  const auto second = upload("report.pdf").json();
  EXPECT_NE(second["path"], first["path"]);
  EXPECT_EQ(read(mount("s1") / second["path"].get<std::string>()), "%PDF-1.4\n");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/uploads", "x").code(), "invalid_request");
}

TEST_F(DaemonFiles, ThatAreUploadedBesideOthersAreNotGivenToTheirOwners) {
  const auto path_of = [&](const HttpAnswer& answer) {
    return mount("s1") / answer.json()["path"].get<std::string>();
  };
  const auto first = path_of(ask("POST", "/v1/sessions/s1/uploads?name=x.sh", "1"));
  struct stat wanted {
  }, other{};
  ASSERT_EQ(::stat(first.c_str(), &wanted), 0);
  ASSERT_EQ(::chown(first.c_str(), 1234, 1235), 0);
  ASSERT_EQ(::chmod(first.c_str(), 0777), 0);
  const auto second = path_of(ask("POST", "/v1/sessions/s1/uploads?name=x.sh", "2"));
  ASSERT_NE(second, first);
  ASSERT_EQ(::stat(second.c_str(), &other), 0);
  EXPECT_EQ(other.st_uid, wanted.st_uid);
  EXPECT_EQ(other.st_gid, wanted.st_gid);
  EXPECT_EQ(other.st_mode, wanted.st_mode);
}

}  // namespace
}  // namespace okcvm::test
