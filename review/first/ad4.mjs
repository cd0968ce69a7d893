// 4 instances share one adaptive rate; upstream 100/s FIFO, 50 ms; instance 0's own path fails (connect error) from 60 s to 120 s
import { AdaptiveRate } from '/tmp/rv/rev/build/src/core/adaptive/adaptive-rate.js'
function run(N,bad,from,to,end){
 const tg={min:.005,max:.2,start:.005,latency:{part:.9,ms:800},errors:.02}
 const A=Array.from({length:N},()=>new AdaptiveRate(tg,0,N>1?'shared':'own'))
 let now=0,free=0,next=0,ev=[],served=0,turn=0,sent=0;const out=[];let falls=0
 const tell=i=>{const st=A[i].state;let again=false;for(let j=0;j<N;j++)if(j!==i&&!A[j].adopt(st,now))again=j;return again}
 const sync=(i,b)=>{const s=A[i].state;if(s.rate!==b.rate||s.phase!==b.phase)tell(i)}
 let sec=0
 while(now<end){
  ev.sort((a,b)=>a.at-b.at)
  if(ev.length&&ev[0].at<=next){const e=ev.shift();now=e.at;const b=A[e.i].state;if(e.fail)A[e.i].failed(e.q,now);else{A[e.i].served(e.q,now);served++};sync(e.i,b);}
  else{now=next;const i=turn++%N;const b=A[i].state;const q=A[i].sent({cost:1,client:'c'+(turn%97),isTimed:true,isHeld:true},now);sync(i,b);sent++
   if(i===0&&bad&&now>=from&&now<to)ev.push({at:now+1,i,q,fail:true});else{free=Math.max(free,now)+10;ev.push({at:Math.max(free,now+50),i,q})}
   next=now+1/A[i].rate}
  while(now>=sec*1000+10000){sec+=10;out.push(`${sec}s ${(A[1%N].rate*1000).toFixed(1)}/s served ${(served/10).toFixed(0)}/s falls ${A[1%N].state.falls}`);served=0}
 }
 return out
}



console.log('20 instances, instance 0 fails 60-90 s\n'+run(20,true,60000,90000,600000).filter((_,i)=>i>4&&(i<12||i%10==9)).join('\n'))
