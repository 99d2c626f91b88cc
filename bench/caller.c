/* Calls CNI plugins as a runtime does, and takes the time: a load that costs the machine next to nothing itself.
 *
 * usage: caller COMMAND CALLERS CNI_PATH < attachments
 * One attachment a line, fields parted by tabs: container ID, netns, then pairs of a plugin's path and its
 * configuration, an object without its last brace. In an ADD each plugin gets the result of the one before as
 * prevResult. One line a attachment to stdout, in order: microseconds, exit status, what the last plugin said.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FIELDS = 40, SAID = 1 << 16, CONFIG = 1 << 18 };

struct attachment {
    char *fields[FIELDS];
    int count, status;
    long micros;
    char *said;
};

static struct attachment *all;
static int total, next;
static const char *command, *search;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

/* Pipes are made close-on-exec, so no plugin holds another's open. */
static int run(const char *path, char **env, const char *config, char *said)
{
    int in[2], out[2], status;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    char *argv[] = {(char *)path, NULL};
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        fail("pipe2");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    errno = posix_spawn(&pid, path, &actions, NULL, argv, env);
    if (errno)
        fail(path);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    for (size_t left = strlen(config); left;) {
        ssize_t n = write(in[1], config, left);
        if (n < 0)
            break;
        config += n, left -= (size_t)n;
    }
    close(in[1]);
    size_t length = 0;
    for (ssize_t n; length < SAID - 1 && (n = read(out[0], said + length, SAID - 1 - length)) > 0;)
        length += (size_t)n;
    said[length] = 0;
    close(out[0]);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void attach(struct attachment *one, char *said, char *config)
{
    char variables[7][4096], *env[8] = {0};
    const char *values[] = {command, one->fields[0], one->fields[1], "eth0", search, "/usr/sbin:/usr/bin:/sbin:/bin"};
    const char *names[] = {"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "PATH"};
    for (int i = 0; i < 6; i++) {
        snprintf(variables[i], sizeof variables[i], "%s=%s", names[i], values[i]);
        env[i] = variables[i];
    }
    const char *agent = getenv("PODWIRE_SOCKET");
    if (agent) {
        snprintf(variables[6], sizeof variables[6], "PODWIRE_SOCKET=%s", agent);
        env[6] = variables[6];
    }
    said[0] = 0;
    long begin = now();
    for (int i = 2; i + 1 < one->count; i += 2) {
        int chained = said[0] && !strcmp(command, "ADD");
        snprintf(config, CONFIG, "%s%s%s}", one->fields[i + 1], chained ? ",\"prevResult\":" : "", chained ? said : "");
        one->status = run(one->fields[i], env, config, said);
        if (one->status)
            break;
    }
    one->micros = now() - begin;
    for (char *c = said; *c; c++)
        if (*c == '\n' || *c == '\t')
            *c = ' ';
    one->said = strdup(said);
}

static void *caller(void *unused)
{
    char *said = malloc(SAID), *config = malloc(CONFIG);
    for (;;) {
        pthread_mutex_lock(&lock);
        int mine = next++;
        pthread_mutex_unlock(&lock);
        if (mine >= total)
            return unused;
        attach(&all[mine], said, config);
    }
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t size = 0;
    if (argc != 4)
        return 2;
    command = argv[1], search = argv[3];
    int callers = atoi(argv[2]);
    while (getline(&line, &size, stdin) > 0) {
        all = realloc(all, sizeof *all * (size_t)(total + 1));
        struct attachment *one = &all[total++];
        *one = (struct attachment){0};
        line[strcspn(line, "\n")] = 0;
        char *rest = strdup(line);
        while (one->count < FIELDS && (one->fields[one->count] = strsep(&rest, "\t")))
            one->count++;
    }
    pthread_t threads[64];
    long begin = now();
    for (int i = 0; i < callers && i < 64; i++)
        pthread_create(&threads[i], NULL, caller, NULL);
    for (int i = 0; i < callers && i < 64; i++)
        pthread_join(threads[i], NULL);
    fprintf(stderr, "%ld\n", now() - begin);
    for (int i = 0; i < total; i++)
        printf("%ld\t%d\t%s\n", all[i].micros, all[i].status, all[i].said);
    return 0;
}
