/** Scripts that complete the command line in a shell. They name what the program has when they are printed. */
import type { Command, Option } from 'commander'
import { FORMATS } from '../../replay/formats/format-names.js'

export const SHELLS = ['bash', 'zsh', 'fish'] as const
type Shell = (typeof SHELLS)[number]

interface CompletedCommand {
  readonly name: string
  readonly description: string
  readonly options: readonly Option[]
  /** Words that stand for its first argument. */
  readonly words: readonly string[]
  readonly takesFiles: boolean
}

const OF_FILES = ['import', 'replay']

/** The values of options that a command checks itself. */
const VALUES: Readonly<Record<string, readonly string[]>> = {
  '--format': ['auto', ...Object.keys(FORMATS)],
  '--mode': ['shape', 'meter'],
  '--spread': ['even', 'none'],
}

export function completion(shell: Shell, program: Command): string {
  const help = program.createHelp()
  const commands = program.commands.map(command => ({
    name: command.name(),
    description: command.description(),
    options: help.visibleOptions(command),
    words: command.registeredArguments[0]?.argChoices ?? [],
    takesFiles: OF_FILES.includes(command.name()),
  }))
  const words = commands.map(({ name }) => name)
  const ofHelp = { name: 'help', description: 'display help for a command', options: [], words, takesFiles: false }
  return { bash, zsh, fish }[shell]([...commands, ofHelp])
}

function bash(commands: readonly CompletedCommand[]): string {
  const cases = commands.flatMap(({ name, options, words, takesFiles }) => [
    ...options
      .filter(({ required }) => required)
      .map(
        option =>
          `    ${flagsOf(option)
            .map(flag => `${name}:${flag}`)
            .join('|')}) words='${valuesOf(option).join(' ')}' ;;`,
      ),
    // Without a word to offer bash offers files.
    `    ${name}:*) ${takesFiles ? '[[ $cur != -* ]] || ' : ''}words='${[...words, ...options.map(({ long }) => long)].join(' ')}' ;;`,
  ])
  return `_shaper() {
  local words cur=\${COMP_WORDS[COMP_CWORD]}
  case "\${COMP_WORDS[1]}:\${COMP_WORDS[COMP_CWORD - 1]}" in
${cases.join('\n')}
  esac
  if [ "$COMP_CWORD" = 1 ]; then words='${[...commands.map(({ name }) => name), '--help', '--version'].join(' ')}'; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _shaper shaper
`
}

function zsh(commands: readonly CompletedCommand[]): string {
  const names = commands.map(({ name, description }) => `    ${quoted(`${name}:${description}`)}`)
  const cases = commands.map(({ name, options, words, takesFiles }) => {
    const lines = [
      ...options.map(zshOption),
      ...(words.length > 0 ? [`'1:word:(${words.join(' ')})'`] : []),
      ...(takesFiles ? [`'*:file:_files'`] : []),
    ]
    return `    ${name}) _arguments ${lines.join(' \\\n      ')} ;;`
  })
  return `#compdef shaper
_shaper() {
  local -a commands=(
${names.join('\n')}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
${cases.join('\n')}
  esac
}
compdef _shaper shaper
`
}

function zshOption(option: Option): string {
  const flags = flagsOf(option)
  const values = valuesOf(option)
  const action = values.length > 0 ? `(${values.join(' ')})` : takesFile(option) ? '_files' : ' '
  const value = option.required ? `:${option.attributeName()}:${action}` : ''
  const text = option.description.replace(/[[\]:\\]/g, '\\$&')
  const again = option.long === '--field' ? '*' : ''
  return flags.map(flag => quoted(`${again}${flag}[${text}]${value}`)).join(' ')
}

function fish(commands: readonly CompletedCommand[]): string {
  const first = '-n __fish_use_subcommand'
  return commands
    .flatMap(({ name, description, options, words }) => {
      const within = `complete -c shaper -n '__fish_seen_subcommand_from ${name}'`
      return [
        `complete -c shaper -f ${first} -a ${name} -d ${quoted(description)}`,
        ...(words.length > 0 ? [`${within} -f -a '${words.join(' ')}'`] : []),
        ...options.map(option => {
          const values = valuesOf(option)
          const short = option.short === undefined ? '' : ` -s ${option.short.slice(1)}`
          const value =
            values.length > 0
              ? ` -x -a '${values.join(' ')}'`
              : option.required
                ? takesFile(option)
                  ? ' -r'
                  : ' -x'
                : ''
          return `${within} -l ${option.long!.slice(2)}${short}${value} -d ${quoted(option.description)}`
        }),
      ]
    })
    .join('\n')
    .concat('\n')
}

function takesFile({ flags }: Option): boolean {
  return flags.endsWith('<file>')
}

function valuesOf({ argChoices, long }: Option): readonly string[] {
  return argChoices ?? (Object.hasOwn(VALUES, long!) ? VALUES[long!]! : [])
}

function flagsOf({ short, long }: Option): string[] {
  return [short, long].flatMap(flag => flag ?? [])
}

/** A word of any of these shells. fish reads a backslash before a quote, the others do not. So there are no quotes in it. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", '’')}'`
}
