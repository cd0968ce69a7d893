/** The scripts of `shaper completion`, in the shells themselves. */
import { spawnSync } from 'node:child_process'
import t from 'tap'
import { shaperHere } from './command.js'

async function script(shell: string): Promise<string> {
  const { code, stdout } = await shaperHere(['completion', shell])
  if (code !== 0) throw new Error(`exit ${code}`)
  return stdout
}

/** What a shell prints for some commands. */
function output(shell: string, args: readonly string[], commands: string): string[] {
  const { stdout, stderr, status } = spawnSync(shell, [...args, '-c', commands], { encoding: 'utf8' })
  if (status !== 0 || stderr !== '') throw new Error(`${shell}: exit ${status}: ${stderr}`)
  return stdout.split(/\s+/).filter(Boolean)
}

t.test('bash', async t => {
  const text = await script('bash')
  const complete = (...words: string[]): string[] => {
    const list = ['shaper', ...words].map(word => `'${word}'`).join(' ')
    const asked = `COMP_WORDS=(${list}); COMP_CWORD=${words.length}; _shaper; printf '%s\\n' "\${COMPREPLY[@]}"`
    return output('bash', ['--norc'], `${text}\n${asked}`)
  }
  t.same(complete('st'), ['start'])
  t.ok(complete('').includes('import'))
  t.same(complete('start', '--lo'), ['--log', '--log-level'])
  t.same(complete('start', '--log', ''), ['pretty', 'json'])
  t.same(complete('start', '--log', 'pretty', '--dr'), ['--dry-run'])
  t.same(complete('completion', 'f'), ['fish'])
  t.same(complete('start', '-c', 'x'), [], 'a file')
  t.same(complete('import', ''), [], 'files')
  t.same(complete('replay', ''), [], 'files')
  t.same(complete('replay', '--ta'), ['--target'])
  t.same(complete('replay', '--format', 'c'), ['common', 'combined', 'cloudfront'])
  t.same(complete('start', '--mode', ''), ['shape', 'meter'])
  t.same(complete('help', 'rep'), ['replay'])
})

t.test('fish', async t => {
  const text = await script('fish')
  const complete = (line: string): string[] => {
    const found = output('fish', ['--no-config'], `${text}\ncomplete -C '${line}' | string replace -r '\\t.*' ''; true`)
    return found
  }
  t.same(complete('shaper st'), ['start'])
  t.same(complete('shaper start --lo').sort(), ['--log', '--log-level'])
  t.same(complete('shaper start --log '), ['pretty', 'json'].sort())
  t.same(complete('shaper completion f'), ['fish'])
  t.same(complete('shaper start --mode ').sort(), ['meter', 'shape'])
  t.same(complete('shaper help rep'), ['replay'])
})

t.test('long: zsh', async t => {
  const text = await script('zsh')
  // A terminal of its own, in which a key lists what it would complete to.
  const complete = (line: string): string[] => {
    const commands = `
      zmodload zsh/zpty
      zpty z zsh -f -i
      zpty -w z 'PS1=; autoload -Uz compinit; compinit -D; zstyle ":completion:*" list-colors; LISTMAX=1000'
      zpty -w z "source $SCRIPT"
      zpty -w z 'comppostfuncs=(print_all); print_all() { print -r -- "<<$compstate[nmatches]>>" }'
      zpty -w z 'compadd() { builtin compadd -O found "$@"; (( $#found )) && print -r -- "FOUND $found"; builtin compadd "$@" }'
      zpty -w z 'print REA""DY'
      while zpty -r z line && [[ $line != *READY* ]]; do :; done
      zpty -n -w z $'${line}\\t'
      while zpty -r z line; do print -r -- "$line"; [[ $line == *'<<'* ]] && break; done
      zpty -d z`
    const dir = t.testdir({ script: text })
    const { stdout, status } = spawnSync('zsh', ['-f', '-c', commands], {
      encoding: 'utf8',
      env: { ...process.env, SCRIPT: `${dir}/script` },
      timeout: 30_000,
    })
    if (status !== 0) throw new Error(`zsh: ${status}`)
    return [...stdout.matchAll(/FOUND ([^\r\n]*)/g)].flatMap(([, words]) => words!.split(' '))
  }
  t.same([...new Set(complete('shaper st'))], ['start'])
  t.ok(complete('shaper start --lo').includes('--log-level'))
  t.ok(complete('shaper start --log ').includes('pretty'))
  t.ok(complete('shaper completion f').includes('fish'))
  t.ok(complete('shaper start --mode ').includes('meter'))
  t.ok(complete('shaper help rep').includes('replay'))
})
