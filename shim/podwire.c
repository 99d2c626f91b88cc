/*
 * The program that a container runtime calls as a CNI plugin: it hands the call to Podwire's agent and its
 * answer back. Its own name is the plugin's type. Documented in docs/install.md.
 *
 *   POST /cni/v1/<type> HTTP/1.1        on the agent's unix socket
 *   Podwire-Environment: <n>            bytes of the body that are the environment
 *   Podwire-Timeout: <milliseconds>     what is left until the deadline
 *   Content-Length: <n + m>
 *
 *   <n bytes: KEY=VALUE entries, each ended by NUL><m bytes: stdin>
 *
 * The answer's last Podwire-Stderr bytes are for stderr, those before them for stdout, Podwire-Exit is the exit
 * status. Nothing of it is written before all of it is here. The sending side stays open until then: its end
 * tells the agent that the caller has gone.
 */
#include "podwire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    ENVIRONMENT_MAX = 256 << 10,
    STDIN_MAX = (8 << 20) - ENVIRONMENT_MAX, /* together what the agent takes */
    HEADERS_MAX = 8 << 10,
    TYPE_MAX = 64,
    ARGUMENTS_MAX = 32,
    DEFAULT_MS = 60 * 1000, /* CNI hands plugins no deadline: neither the specification nor libcni has one */
    TIMEOUT_MAX_MS = 3600 * 1000,
    ABSENT_MS = 1000,       /* how long an agent that is not there may take to come back: it may be restarting */
    RETRY_MS = 10,
    VERSION_STDIN_MS = 200, /* VERSION needs nothing of stdin, and a caller may never close it */
};

/* `podwire install` knows our programs by the mark, and writes the path of another socket behind it. */
struct settings {
    char mark[24];
    char socket[SOCKET_PATH];
};
static const volatile struct settings settings = {"podwire-shim settings 1", "/run/podwire/agent.sock"};

extern char **environ;
static char environment[ENVIRONMENT_MAX];
static char input[STDIN_MAX + 1];
static char received[HEADERS_MAX + ANSWER_MAX];

/* The milliseconds of "90", "1.5", "500ms" or "1h2m3s"; -1 if it is no such thing, or no sensible one. */
static int64_t duration(const char *text)
{
    static const struct { const char *name; int64_t ms; } units[] = {
        {"ms", 1}, {"h", 3600000}, {"m", 60000}, {"s", 1000},
    };
    int64_t total = 0;
    for (const char *at = text; at == text || *at;) {
        int64_t value = 0, scale = 1, unit = 0;
        const char *start = at;
        for (; *at >= '0' && *at <= '9' && at - start < 9; at++)
            value = value * 10 + *at - '0';
        if (at == start)
            return -1;
        if (*at == '.' && at[1] >= '0' && at[1] <= '9')
            for (at++; *at >= '0' && *at <= '9'; at++)
                if (scale < 1000)
                    value = value * 10 + *at - '0', scale *= 10;
        for (size_t n = 0; n < sizeof units / sizeof *units && !unit; n++)
            if (!strncmp(at, units[n].name, strlen(units[n].name)))
                unit = units[n].ms, at += strlen(units[n].name);
        if (!unit && (*at || strpbrk(text, "hms")))
            return -1;
        total += value * (unit ? unit : 1000) / scale;
    }
    return total > 0 && total <= TIMEOUT_MAX_MS ? total : -1;
}

/* The plugin's type: the name that we were called by. */
static const char *plugin_type(const char *called)
{
    const char *slash = called ? strrchr(called, '/') : NULL;
    const char *type = slash ? slash + 1 : called ? called : "";
    size_t good = strspn(type, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (!good || type[good] || good > TYPE_MAX || *type == '.')
        refuse(INVALID_ENVIRONMENT, "argv[0] ", type, ": not the name of a plugin");
    return type;
}

/* What of the environment concerns a plugin, and its length. */
static size_t collect(void)
{
    static const char *const kinds[] = {"CNI_", "PODWIRE_", "TRACEPARENT=", "TRACESTATE=", "BAGGAGE="};
    size_t size = 0;
    for (char **entry = environ; entry && *entry; entry++)
        for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
            size_t length = strlen(*entry) + 1;
            if (strncmp(*entry, kinds[n], strlen(kinds[n])))
                continue;
            if (length > sizeof environment - size)
                refuse(INVALID_ENVIRONMENT, "CNI_*, PODWIRE_* and trace variables", "", ": more than 256 KiB");
            memcpy(environment + size, *entry, length);
            size += length;
        }
    return size;
}

/* Become the plugin that needs no agent, if it is installed beside us. stdin is as it was. */
static void become_standalone(const char *type, char **arguments)
{
    char path[PATH_LENGTH], *words[ARGUMENTS_MAX + 3] = {path, (char *)(uintptr_t)type};
    static const char name[] = "podwire-standalone";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(path + sizeof path - slash - 1) < sizeof name)
        return;
    memcpy(slash + 1, name, sizeof name);
    for (size_t n = 0; n < ARGUMENTS_MAX && arguments[n]; n++)
        words[n + 2] = arguments[n];
    signal(SIGPIPE, SIG_DFL);
    execve(path, words, environ);
    if (errno != ENOENT)
        refuse(IO_FAILURE, path, ": ", strerror(errno));
}

/* Whoever listens must be root, or whoever we are: the answer decides about a pod's network. */
static void check_peer(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    char number[21];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        unavailable("who listens cannot be told: ", strerror(errno), "");
    if (peer.uid != 0 && peer.uid != geteuid())
        unavailable("it is not root who listens, but user ", decimal(peer.uid, number), "");
}

static int connect_agent(const char *type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int64_t patience = now() + ABSENT_MS;
    memcpy(address.sun_path, socket_path, sizeof socket_path);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            refuse(IO_FAILURE, "socket: ", strerror(errno), "");
        if (!connect(fd, (struct sockaddr *)&address, sizeof address))
            return check_peer(fd), fd;
        int error = errno, absent = error == ENOENT || error == ECONNREFUSED;
        close(fd);
        if (!absent && error != EAGAIN && error != EINTR) /* EAGAIN: it has more callers than it can queue */
            unavailable("cannot connect: ", strerror(error), "");
        if (now() >= deadline || (absent && now() >= patience)) {
            if (!absent)
                late("too busy to take the call");
            become_standalone(type, (char *[]){NULL});
            unavailable("not running: ", strerror(error),
                        "tried for a second, and no podwire-standalone is installed beside this program; start the"
                        " agent: `systemctl start podwire-agent`, or `podwire agent`");
        }
        poll(NULL, 0, RETRY_MS);
    }
}

/* Whether the command has a configuration. One that the agent refuses anyway must not hang on a terminal. */
static int reads_input(void)
{
    static const char *const commands[] = {"ADD", "CHECK", "DEL", "GC", "STATUS"};
    for (size_t n = 0; n < sizeof commands / sizeof *commands; n++)
        if (!strcmp(command, commands[n]))
            return 1;
    return 0;
}

/* The length of the configuration on stdin. */
static size_t read_input(void)
{
    int version = !strcmp(command, "VERSION");
    int64_t end = version && now() + VERSION_STDIN_MS < deadline ? now() + VERSION_STDIN_MS : deadline;
    size_t size = 0;
    if (version ? isatty(STDIN_FILENO) : !reads_input())
        return 0;
    for (;;) {
        if (wait_for(STDIN_FILENO, POLLIN, end)) {
            if (version)
                return size;
            refuse(IO_FAILURE, "error reading from stdin: ", "", "no end of it before the deadline");
        }
        ssize_t got = read(STDIN_FILENO, input + size, sizeof input - size);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            refuse(IO_FAILURE, "error reading from stdin: ", strerror(errno), "");
        size += (size_t)got;
        if (size > STDIN_MAX)
            refuse(DECODE_FAILURE, "the configuration on stdin", "", ": more than 7.75 MiB");
        if (!got)
            return size;
    }
}

/* Send what `parts` hold (it is used up) and receive the answer: where its body begins. */
static size_t exchange(int fd, struct iovec parts[3], struct answer *answer)
{
    size_t size = 0, body = 0;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    for (;;) {
        while (message.msg_iovlen && !message.msg_iov->iov_len)
            message.msg_iov++, message.msg_iovlen--;
        struct pollfd one = {.fd = fd, .events = (short)(POLLIN | (message.msg_iovlen ? POLLOUT : 0))};
        int ready = poll(&one, 1, until(deadline));
        if (ready < 0 && errno != EINTR)
            unavailable("poll: ", strerror(errno), "");
        if (!ready)
            late("no answer");
        if (ready < 0)
            continue;
        if (message.msg_iovlen && one.revents & POLLOUT) {
            ssize_t sent = sendmsg(fd, &message, 0);
            if (sent < 0 && errno != EAGAIN && errno != EINTR)
                message.msg_iovlen = 0; /* it may have answered before it hung up */
            for (size_t left = sent > 0 ? (size_t)sent : 0; left; message.msg_iov++, message.msg_iovlen--) {
                struct iovec *part = message.msg_iov;
                size_t taken = left < part->iov_len ? left : part->iov_len;
                part->iov_base = (char *)part->iov_base + taken;
                part->iov_len -= taken;
                left -= taken;
                if (part->iov_len)
                    break;
            }
        }
        if (!(one.revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        ssize_t got = recv(fd, received + size, (body ? sizeof received : HEADERS_MAX) - size, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0) {
            if (body && answer->status != 200 && !answer->has_length) {
                answer->length = size - body;
                return body;
            }
            unavailable("it hung up before it had answered", "", "");
        }
        size += (size_t)got;
        const char *blank = body ? NULL : memmem(received, size, "\r\n\r\n", 4);
        if (blank) {
            body = (size_t)(blank - received) + 4;
            if (parse_head(received, body - 2, answer))
                unavailable("its answer is not understood", "", "");
        }
        if (body && answer->has_length && size - body > answer->length)
            unavailable("its answer is longer than it said", "", "");
        if (body && answer->has_length && size - body == answer->length)
            return body;
        if (size == (body ? sizeof received : HEADERS_MAX))
            unavailable("its answer is too long", "", "");
    }
}

int main(int argc, char **argv)
{
    static struct text head;
    struct answer answer = {0};
    char numbers[3][21];

    /* A closed file would become our socket. In its place: one that refuses what it would be used for. */
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            return 1;
    signal(SIGPIPE, SIG_IGN);
    deadline = now() + DEFAULT_MS;
    if (getenv("CNI_COMMAND"))
        command = getenv("CNI_COMMAND");
    const char *type = plugin_type(argc ? argv[0] : NULL);
    if (argc > 1 && !*command) { /* no plugin's call, but the like of `dhcp daemon` */
        become_standalone(type, argv + 1);
        refuse(INVALID_ENVIRONMENT, type, " ", "takes arguments only where podwire-standalone is beside it");
    }
    const char *given = getenv("PODWIRE_TIMEOUT");
    if (given && *given) {
        int64_t time = duration(given);
        if (time < 0)
            refuse(INVALID_ENVIRONMENT, "PODWIRE_TIMEOUT ", given, ": not a duration up to 1h, as 30, 1.5, 1m30s");
        deadline = now() + time;
    }
    for (size_t n = 0; n < sizeof socket_path - 1; n++)
        socket_path[n] = settings.socket[n];
    given = getenv("PODWIRE_SOCKET");
    if (given && *given) {
        if (strlen(given) >= sizeof socket_path)
            refuse(INVALID_ENVIRONMENT, "PODWIRE_SOCKET ", given, ": too long for a socket's path");
        strcpy(socket_path, given);
    }
    size_t variables = collect();
    int fd = connect_agent(type);
    size_t configuration = read_input();
    say(&head, "POST /cni/v1/", type,
        " HTTP/1.1\r\nHost: podwire\r\nContent-Type: application/vnd.podwire.cni\r\nPodwire-Environment: ",
        decimal(variables, numbers[0]), "\r\nPodwire-Timeout: ", decimal((unsigned)until(deadline), numbers[1]),
        "\r\nContent-Length: ", decimal(variables + configuration, numbers[2]), "\r\nConnection: close\r\n\r\n", NULL);
    struct iovec parts[3] = {{head.bytes, head.length}, {environment, variables}, {input, configuration}};
    char *body = received + exchange(fd, parts, &answer);

    if (answer.status != 200) {
        static struct text said, none;
        while (answer.length && (body[answer.length - 1] == '\n' || body[answer.length - 1] == '\r'))
            answer.length--;
        if (!answer.length)
            unavailable("it refused the call with status ", decimal(answer.status, numbers[0]), "");
        said.length = answer.length < sizeof said.bytes ? answer.length : sizeof said.bytes;
        memcpy(said.bytes, body, said.length);
        fail(strcmp(command, "STATUS") ? TRY_LATER : NOT_AVAILABLE, &said, &none);
    }
    size_t result = answer.length - answer.errors;
    (void)!write_all(STDERR_FILENO, body + result, answer.errors);
    if (write_all(STDOUT_FILENO, body, result)) {
        static struct text complaint;
        say(&complaint, "cannot write to stdout: ", strerror(errno), "\n", NULL);
        deadline = now() + LAST_WORDS_MS;
        (void)!write_all(STDERR_FILENO, complaint.bytes, complaint.length);
        return 1;
    }
    return (int)answer.exit;
}
